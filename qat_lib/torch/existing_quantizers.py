"""Existing quantizers of a PyTorch model: inserted manually, or parts of quantized modules."""

from __future__ import annotations

from torch import nn

from qat_lib.errors import UnsupportedModelError
from qat_lib.graph.traits import ExistingQuantizers
from qat_lib.torch.nn import QuantInputMixin
from qat_lib.torch.tensor_quantizer import TensorQuantizer


def is_quantized(module: nn.Module) -> bool:
    """Return whether a module is a quantizer, or quantizes inputs or weights."""
    return isinstance(module, TensorQuantizer | QuantInputMixin)


def existing_quantizers(module: nn.Module) -> ExistingQuantizers | None:
    """Return the quantized inputs and weights of a module; None for unquantized modules."""
    if isinstance(module, TensorQuantizer):
        return ExistingQuantizers(inputs=_whole(module), quantizer=module)
    if not isinstance(module, QuantInputMixin):
        return None
    own, weight = input_quantizer(module), getattr(module, "_weight_quantizer", None)
    return ExistingQuantizers(
        inputs=() if own is None or not own.enabled else _whole(own),
        weights=isinstance(weight, TensorQuantizer) and weight.enabled,
    )


def input_quantizer(module: nn.Module) -> TensorQuantizer | None:
    """Return the single input quantizer of a quantized module, if any."""
    own = getattr(module, "_input_quantizer", None)
    return own if isinstance(own, TensorQuantizer) else None


def _whole(quantizer: TensorQuantizer) -> tuple[int, ...]:
    return (0,) if quantizer.axis is None else ()


def refuse_other_tools(model: nn.Module) -> None:
    """Reject a model with PyTorch's quantized modules.

    Raises:
        UnsupportedModelError: the model contains such a module.
    """
    for name, module in model.named_modules():
        home = type(module).__module__
        if home.startswith(("torch.ao.", "torch.nn.quantized", "torch.nn.qat")):
            raise UnsupportedModelError(
                f"Expected a model in floating point. Received one with {type(module).__name__} at "
                f"{name!r}, a quantized module of PyTorch's own. Take the model as it was before, "
                "and quantize it with qat_lib.torch.quantize_model."
            )
