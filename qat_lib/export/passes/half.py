"""Convert unquantized layers to float16, with casts at inputs and outputs.

A strongly typed TensorRT network runs each operator in the type of the graph, so this pass selects
INT8 + FP16. Scales below float16's least subnormal (2**-24) are raised to it, because they must be
positive.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from qat_lib.errors import ExportError
from qat_lib.export.graph import (
    add_constant,
    attribute,
    constant,
    is_op,
    lowering_pass,
    new_node,
    operand,
    producer,
)

HALF = ir.DataType.FLOAT16
LARGEST = float(np.finfo(np.float16).max)
LEAST_SCALE = np.float16(2.0**-24)
KEEP_FLOAT_INPUTS = {"Resize": (1, 2)}
"""Inputs that ONNX requires in float32 for any type of the data (scales of a Resize), by operator.
"""
SATURATING = ("Clip", "Min", "Max", "Where")
"""Operators with bounds and masks as constants that represent infinity: float16's largest number is
equivalent."""
MASKED = 3e4
"""Mask constant of Keras for float16 scores: its sum with a score is finite."""


def _is_float(value: ir.Value | None) -> bool:
    return value is not None and value.dtype == ir.DataType.FLOAT


@lowering_pass
def convert_float_to_half(model: ir.Model) -> None:
    """Convert float32 initializers and operators to float16, except the graph's inputs and outputs.

    Raises:
        ExportError: a constant is outside of float16's range.
    """
    graph = model.graph
    for value in [v for v in graph.initializers.values() if _is_float(v)]:
        _halve_initializer(graph, value)
    for node in graph:
        # A Cast to float32 inside the graph would bring back the wide type.
        if is_op(node, "Cast") and attribute(node, "to") == ir.DataType.FLOAT:
            node.attributes["to"] = ir.AttrInt64("to", int(HALF))
        for output in node.outputs:
            if _is_float(output):
                output.dtype = HALF
    _cast_inputs(graph)
    _cast_outputs(graph)


def _halve_initializer(graph: ir.Graph, value: ir.Value) -> None:
    array = constant(value)
    if array is None:
        return
    uses = [
        use for use in value.uses() if use.idx not in KEEP_FLOAT_INPUTS.get(use.node.op_type, ())
    ]
    if not uses:
        return
    finite = array[np.isfinite(array)]
    masked = all(_is_switched_by_mask(use.node, use.idx) for use in uses)
    saturating = all(is_op(use.node, *SATURATING) for use in uses)
    if masked and np.any(np.abs(array) > LARGEST):
        # The largest float16 number would overflow in the sum with a score.
        array = np.clip(array, -MASKED, MASKED)
    elif not saturating and np.any(np.abs(finite) > LARGEST):
        raise ExportError(
            "Expected constants within float16's range (+-65504). Received "
            f"{np.abs(finite).max():g} in "
            f"{value.name!r}, read by {uses[0].node.name!r}. Export with float_precision='fp32'."
        )
    half = np.clip(array, -LARGEST, LARGEST).astype(np.float16)
    if any(is_op(use.node, "QuantizeLinear", "DequantizeLinear") and use.idx == 1 for use in uses):
        half = np.maximum(half, LEAST_SCALE)
    # A new initializer: inputs that require float32 keep the old one.
    new = add_constant(graph, half, str(value.name))
    for use in uses:
        use.node.replace_input_with(use.idx, new)


def _is_switched_by_mask(node: ir.Node, position: int) -> bool:
    """Return whether a node multiplies its operand by a Boolean mask.

    The product is added to the masked scores.
    """
    if not is_op(node, "Mul"):
        return False
    mask = producer(operand(node, 1 - position))
    source = operand(mask, 0) if mask is not None and is_op(mask, "Cast") else None
    return source is not None and source.dtype == ir.DataType.BOOL


def _cast_inputs(graph: ir.Graph) -> None:
    for value in graph.inputs:
        uses = list(value.uses())
        if not _is_float(value) or not uses:
            continue
        cast = ir.node("Cast", [value], {"to": int(HALF)})
        cast.outputs[0].dtype, cast.outputs[0].shape = HALF, value.shape
        cast.meta["keras_layer"] = value.name
        for use in uses:
            use.node.replace_input_with(use.idx, cast.outputs[0])
        graph.insert_before(graph[0], cast)


def _cast_outputs(graph: ir.Graph) -> None:
    for index, value in enumerate(list(graph.outputs)):
        node = value.producer()
        if node is None or value.dtype != HALF:
            continue
        name = value.name
        value.name = None
        cast = new_node(
            "Cast", [value], {"to": int(ir.DataType.FLOAT)}, origin=node, shape=value.shape
        )
        # `new_node` copies the type of the origin, which is float16 now.
        cast.outputs[0].dtype = ir.DataType.FLOAT
        graph.append(cast)
        graph.outputs[index] = cast.outputs[0]
        cast.outputs[0].name = name
