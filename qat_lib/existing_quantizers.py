"""The quantizers that a model has before it is quantized: put there by hand, or by an earlier call."""

from __future__ import annotations

from qat_lib.layer_graph import Call, LayerGraph
from qat_lib.layer_traits import preserves_range
from qat_lib.quantize_wrappers import BaseQuantizeWrapper
from qat_lib.quantizers import TensorQuantizer


def quantizer_on(graph: LayerGraph, tensor: str) -> Call | None:
    """Return the TensorQuantizer through which the tensor comes, directly or by layers that keep it quantized."""
    call = graph.producer(tensor)
    while len(call.inputs) == 1 and preserves_range(call.core):
        call = graph.producer(call.inputs[0])
    return call if isinstance(call.operation, TensorQuantizer) else None


def own_quantizers(call: Call) -> tuple[int, ...]:
    """Return the inputs that the call quantizes itself: that of a TensorQuantizer, those of a wrapper used by hand.

    A TensorQuantizer with a range for each channel is none of a tensor as a whole, and does not count.
    """
    operation = call.operation
    if isinstance(operation, TensorQuantizer):
        return (0,) if operation.channel_axes is None else ()
    if isinstance(operation, BaseQuantizeWrapper) and operation.quantize_inputs:
        chosen = operation.quantization_index
        return tuple(i for i in range(len(call.inputs)) if chosen is None or i in chosen)
    return ()
