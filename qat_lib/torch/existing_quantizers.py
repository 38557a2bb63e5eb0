"""Quantizers that a PyTorch model has before quantization: by hand, or of quantized modules."""

from __future__ import annotations

from typing import Any

from torch import nn

from qat_lib.errors import UnsupportedModelError
from qat_lib.graph.traits import ExistingQuantizers
from qat_lib.torch.tensor_quantizer import TensorQuantizer


def is_quantized(module: nn.Module) -> bool:
    """Whether a module is a quantizer, or quantizes its inputs or weights itself."""
    return isinstance(module, TensorQuantizer) or bool(own_quantizers(module))


def own_quantizers(module: nn.Module) -> list[TensorQuantizer]:
    """Return the quantizers of a quantized module's input and weight."""
    found = []
    for name in ("input_quantizer", "weight_quantizer"):
        quantizer = getattr(module, name, None)
        if isinstance(quantizer, TensorQuantizer):
            found.append(quantizer)
    return found


def existing_quantizers(module: Any) -> ExistingQuantizers | None:
    """Return what a quantizer or quantized module quantizes; None for other modules."""
    if isinstance(module, TensorQuantizer):
        return ExistingQuantizers(inputs=_whole(module), quantizer=module)
    if not isinstance(module, nn.Module) or not own_quantizers(module):
        return None
    own = getattr(module, "input_quantizer", None)
    weight = getattr(module, "weight_quantizer", None)
    return ExistingQuantizers(
        inputs=_whole(own) if own is not None and own.enabled else (),
        weights=weight is not None and weight.enabled,
    )


def _whole(quantizer: TensorQuantizer) -> tuple[int, ...]:
    return (0,) if quantizer.axis is None else ()


def refuse_other_tools(model: nn.Module) -> None:
    """Refuse a model with quantized modules of PyTorch's own.

    Raises:
        UnsupportedModelError: there is one.
    """
    for name, module in model.named_modules():
        home = type(module).__module__
        if home.startswith(("torch.ao.", "torch.nn.quantized", "torch.nn.qat")):
            raise UnsupportedModelError(
                f"Expected a model in floating point. Received one with {type(module).__name__} at "
                f"{name!r}, a quantized module of PyTorch's own. Take the model as it was before, "
                "and quantize it with qat_lib.torch.quantize_model."
            )
