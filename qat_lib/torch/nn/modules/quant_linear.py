"""The quantized linear layer: input and weight."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F  # noqa: N812
from torch import nn

from qat_lib.torch import tensor_quant
from qat_lib.torch.nn.modules.quantized import QuantizedWeight


class QuantLinear(QuantizedWeight, nn.Linear):
    """Quantized ``nn.Linear``."""

    default_quant_desc_weight = tensor_quant.QUANT_DESC_8BIT_LINEAR_WEIGHT_PER_ROW
    bias: Any

    def forward(self, input: Any) -> Any:
        """Multiply the quantized input with the quantized weight."""
        quant_input, quant_weight = self._quant(input)
        return F.linear(quant_input, quant_weight, self.bias)


# pytorch-quantization also exports the names of the originals.
Linear = QuantLinear
