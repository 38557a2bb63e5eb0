"""Base classes of quantized modules: accept descriptors, quantize, run the original."""

from __future__ import annotations

from typing import Any

from qat_lib.torch.nn.modules._utils import QuantInputMixin, QuantMixin, split_descriptors


class QuantizedInput(QuantInputMixin):
    """Base of modules with a quantized input, to be listed before the original class.

    The constructor accepts the original's arguments and ``quant_desc_input``.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        descriptors, others = split_descriptors(kwargs)
        super().__init__(*args, **others)
        self._add_quantizers(**descriptors)

    def forward(self, input: Any) -> Any:
        """Run the original on the quantized input."""
        return super().forward(self._input_quantizer(input))  # type: ignore[misc]


class QuantizedWeight(QuantMixin):
    """Base of modules with quantized input and weight, to be listed before the original class.

    The constructor accepts the original's arguments, ``quant_desc_input`` and
    ``quant_desc_weight``.
    """

    weight: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        descriptors, others = split_descriptors(kwargs)
        super().__init__(*args, **others)
        self._add_quantizers(**descriptors)

    def _quant(self, input: Any) -> tuple[Any, Any]:
        """Return the quantized input and weight."""
        return self._input_quantizer(input), self._weight_quantizer(self.weight)
