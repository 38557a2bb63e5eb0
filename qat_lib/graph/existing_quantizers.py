"""Quantizers that a model has before quantization: by hand, earlier calls, or Keras."""

from __future__ import annotations

from typing import Any

from qat_lib.errors import UnsupportedModelError
from qat_lib.graph.keras_graph import layers_of
from qat_lib.graph.layer_graph import Call, LayerGraph
from qat_lib.graph.layer_traits import preserves_range
from qat_lib.quantize_wrappers import BaseQuantizeWrapper
from qat_lib.quantizers import TensorQuantizer


def quantizer_on(graph: LayerGraph, tensor: str) -> Call | None:
    """Return the TensorQuantizer in front of a tensor, through layers that keep the grid."""
    call = graph.producer(tensor)
    while len(call.inputs) == 1 and preserves_range(call.core):
        call = graph.producer(call.inputs[0])
    return call if isinstance(call.operation, TensorQuantizer) else None


def own_quantizers(call: Call) -> tuple[int, ...]:
    """Return the inputs that a TensorQuantizer or a wrapper used by hand quantizes.

    A TensorQuantizer with a range for each channel is none of a tensor as a whole, and does not
    count.
    """
    operation = call.operation
    if isinstance(operation, TensorQuantizer):
        return (0,) if operation.channel_axes is None else ()
    if isinstance(operation, BaseQuantizeWrapper) and operation.quantize_inputs:
        chosen = operation.quantization_index
        return tuple(i for i in range(len(call.inputs)) if chosen is None or i in chosen)
    return ()


def refuse_keras_quantized(model: Any) -> None:
    """Refuse a model that went through ``keras.Model.quantize``.

    Raises:
        UnsupportedModelError: a layer holds integers in place of its float weights.
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
