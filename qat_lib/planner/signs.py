"""Tensors that are never negative by their layers, which can have unsigned integers."""

from __future__ import annotations

from keras import layers

from qat_lib.custom_qdq_cases.fusion import FUNCTIONS, activation_of, is_merge
from qat_lib.graph.layer_graph import Call, LayerGraph
from qat_lib.graph.layer_traits import AVERAGE_POOLS, WEIGHTED, preserves_range
from qat_lib.graph.roles import activation_functions, keras_operators, rows
from qat_lib.quantizers import TensorQuantizer

NON_NEGATIVE = activation_functions("non-negative")
OPERATORS = keras_operators("non-negative") - FUNCTIONS.keys()
"""Bare operations that are never negative, beside the activations that have a name."""
MERGES = tuple(
    (getattr(layers, layer), operator)
    for row in rows("merge", "sign preserving")
    for layer, operator in zip(row.layers, row.operators, strict=True)
)
SMOOTH = ("bilinear", "nearest")
"""Interpolations that stay within the values they come from; cubic ones overshoot."""


def non_negative_tensors(graph: LayerGraph) -> frozenset[str]:
    """Return the tensors that the layers alone, whatever the weights, keep from being negative."""
    found: set[str] = set()
    for call in graph.calls:
        if _is_non_negative(call, [tensor in found for tensor in call.inputs]):
            found.update(call.outputs)
    return frozenset(found)


def _is_non_negative(call: Call, inputs: list[bool]) -> bool:
    """Whether the outputs of a call are never negative, given which of its inputs are."""
    if call.is_input:
        return False
    if _ends_in_activation(call):
        return True
    if isinstance(call.operation, TensorQuantizer):
        return call.operation.unsigned or inputs[0]
    if is_merge(call.core, layers.Maximum, "Maximum") and any(inputs):
        return True
    return bool(inputs) and all(inputs) and _keeps_sign(call)


def _ends_in_activation(call: Call) -> bool:
    if isinstance(call.core, layers.Softmax) or type(call.core).__name__ in OPERATORS:
        return True
    name = activation_of(call.core)
    # A recurrent layer multiplies after its activation.
    if isinstance(call.core, WEIGHTED):
        name = getattr(call.core.activation, "__name__", None)
    return name in NON_NEGATIVE


def _keeps_sign(call: Call) -> bool:
    """Whether a call makes no negative number of inputs without any."""
    operation = call.core
    if preserves_range(operation) or isinstance(operation, AVERAGE_POOLS):
        return True
    if isinstance(operation, layers.UpSampling2D | layers.Resizing):
        return operation.interpolation in SMOOTH
    # With one tensor, the other operand is a constant, of any sign.
    return len(call.inputs) > 1 and any(is_merge(operation, *kind) for kind in MERGES)
