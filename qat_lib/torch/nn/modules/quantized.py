"""Common base of quantized modules: take descriptors, quantize, run the original."""

from __future__ import annotations

from typing import Any

from qat_lib.torch.nn.modules._utils import QuantInputMixin, QuantMixin, split_descriptors


class QuantizedInput(QuantInputMixin):
    """Base, before the original class, of modules that quantize their input.

    Its constructor takes what the original's does, and ``quant_desc_input``.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        descriptors, others = split_descriptors(kwargs)
        super().__init__(*args, **others)
        self._add_quantizers(**descriptors)

    def forward(self, input: Any) -> Any:
        """Quantize the input, then do what the original does."""
        return super().forward(self._input_quantizer(input))  # type: ignore[misc]


class QuantizedWeight(QuantMixin):
    """Mixin before a float class: quantize its input and weight.

    Its constructor takes what the original's does, ``quant_desc_input`` and
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
