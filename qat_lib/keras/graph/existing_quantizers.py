"""Existing quantizers of a Keras model, from the user, earlier calls or Keras."""

from __future__ import annotations

from typing import Any

from qat_lib.errors import UnsupportedModelError
from qat_lib.graph.traits import ExistingQuantizers
from qat_lib.keras.quantizers import TensorQuantizer
from qat_lib.keras.structure import layers_of
from qat_lib.keras.wrappers import BaseQuantizeWrapper


def existing_quantizers(operation: Any, inputs: int) -> ExistingQuantizers | None:
    """Return the tensors quantized by a TensorQuantizer or wrapper; None for other operations.

    A TensorQuantizer with per-channel ranges does not count as quantizing its input.

    Args:
        operation: a layer or operation.
        inputs: number of input tensors.
    """
    if isinstance(operation, TensorQuantizer):
        whole = (0,) if operation.channel_axes is None else ()
        return ExistingQuantizers(inputs=whole, quantizer=operation)
    if not isinstance(operation, BaseQuantizeWrapper):
        return None
    own: list[int] = []
    chosen = operation.quantization_index
    if operation.quantize_inputs:
        own = [i for i in range(inputs) if chosen is None or i in chosen]
    return ExistingQuantizers(inputs=tuple(own), weights=bool(operation.weight_quantizers))


def refuse_keras_quantized(model: Any) -> None:
    """Reject models quantized by ``keras.Model.quantize``.

    Raises:
        UnsupportedModelError: a layer contains integers instead of float weights.
    """
    for layer in layers_of(model):
        if layer.quantization_mode is not None:
            raise UnsupportedModelError(
                f"Expected a model with float weights. Received one that Keras's own "
                f"quantize({layer.quantization_mode!r}) has changed: {type(layer).__name__} "
                f"{layer.name!r} holds "
                "integers, for which engines have no Q/DQ form. Take the model as it was before "
                "that call, and "
                "quantize it with qat_lib.quantize_model."
            )
