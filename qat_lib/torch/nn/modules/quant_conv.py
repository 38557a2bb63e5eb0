"""Quantized convolutions: input and weight."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch.nn.functional as F  # noqa: N812
from torch import nn

from qat_lib.torch import tensor_quant
from qat_lib.torch.nn.modules.quantized import QuantizedWeight


class _QuantConv(QuantizedWeight):
    """Base of quantized convolutions."""

    bias: Any
    _conv_forward: Callable[..., Any]

    def forward(self, input: Any) -> Any:
        """Convolve the quantized input with the quantized weight."""
        quant_input, quant_weight = self._quant(input)
        return self._conv_forward(quant_input, quant_weight, self.bias)


class QuantConv1d(_QuantConv, nn.Conv1d):
    """Quantized ``nn.Conv1d``."""

    default_quant_desc_weight = tensor_quant.QUANT_DESC_8BIT_CONV1D_WEIGHT_PER_CHANNEL


class QuantConv2d(_QuantConv, nn.Conv2d):
    """Quantized ``nn.Conv2d``."""

    default_quant_desc_weight = tensor_quant.QUANT_DESC_8BIT_CONV2D_WEIGHT_PER_CHANNEL


class QuantConv3d(_QuantConv, nn.Conv3d):
    """Quantized ``nn.Conv3d``."""

    default_quant_desc_weight = tensor_quant.QUANT_DESC_8BIT_CONV3D_WEIGHT_PER_CHANNEL


class _QuantConvTranspose(QuantizedWeight):
    """Base of quantized transposed convolutions."""

    transposed_convolution: ClassVar[Callable[..., Any]]
    bias: Any
    stride: Any
    padding: Any
    dilation: Any
    kernel_size: Any
    groups: int
    _output_padding: Callable[..., Any]

    def forward(self, input: Any, output_size: Any = None) -> Any:
        """Convolve the quantized input with the quantized weight."""
        output_padding = self._output_padding(
            input,
            output_size,
            self.stride,
            self.padding,
            self.kernel_size,
            len(self.kernel_size),
            self.dilation,
        )
        quant_input, quant_weight = self._quant(input)
        return type(self).transposed_convolution(
            quant_input,
            quant_weight,
            self.bias,
            self.stride,
            self.padding,
            output_padding,
            self.groups,
            self.dilation,
        )


class QuantConvTranspose1d(_QuantConvTranspose, nn.ConvTranspose1d):
    """Quantized ``nn.ConvTranspose1d``."""

    default_quant_desc_weight = tensor_quant.QUANT_DESC_8BIT_CONVTRANSPOSE1D_WEIGHT_PER_CHANNEL
    transposed_convolution = staticmethod(F.conv_transpose1d)


class QuantConvTranspose2d(_QuantConvTranspose, nn.ConvTranspose2d):
    """Quantized ``nn.ConvTranspose2d``."""

    default_quant_desc_weight = tensor_quant.QUANT_DESC_8BIT_CONVTRANSPOSE2D_WEIGHT_PER_CHANNEL
    transposed_convolution = staticmethod(F.conv_transpose2d)


class QuantConvTranspose3d(_QuantConvTranspose, nn.ConvTranspose3d):
    """Quantized ``nn.ConvTranspose3d``."""

    default_quant_desc_weight = tensor_quant.QUANT_DESC_8BIT_CONVTRANSPOSE3D_WEIGHT_PER_CHANNEL
    transposed_convolution = staticmethod(F.conv_transpose3d)


# pytorch-quantization also exports the names of the originals.
Conv1d = QuantConv1d
Conv2d = QuantConv2d
Conv3d = QuantConv3d
ConvTranspose1d = QuantConvTranspose1d
ConvTranspose2d = QuantConvTranspose2d
ConvTranspose3d = QuantConvTranspose3d
