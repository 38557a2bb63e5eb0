"""Remove reshapes that only add, drop or move axes of size 1, as squeeze-and-excite blocks are full of.

Keras writes GlobalAveragePool, Reshape to (1, 1, C), convolution; through the layouts that becomes Flatten, Reshape and
Transpose. Such an operator moves no data. It sinks below pointwise operators, joins with its neighbours, and vanishes
where the shapes in front and behind are equal. One between a DQ and a matrix product goes up instead.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from qat_lib.export.graph import (
    TENSOR,
    add_constant,
    attribute,
    constant,
    dims,
    insert_before,
    is_op,
    lowering_pass,
    new_node,
    only_consumer,
    operand,
    producer,
    rank,
    replace,
)
from qat_lib.export.passes.layout_axes import single_axis

RESHAPES = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")


def is_reshape(node: ir.Node | None) -> bool:
    """Whether a node keeps the order of its elements: a reshape, or a Transpose that only moves axes of size 1."""
    if node is None or is_op(node, *RESHAPES):
        return node is not None
    shape = dims(operand(node, 0))
    perm = attribute(node, "perm")
    if not is_op(node, "Transpose") or shape is None or perm is None:
        return False
    kept = [axis for axis in perm if shape[axis] != 1]
    return kept == sorted(kept)


@lowering_pass
def remove_thin_reshapes(model: ir.Model) -> None:
    """Sink reshapes below Q/DQ, join chains of them, and drop those that end in the shape they began with."""
    graph = model.graph
    changed = True
    while changed:
        changed = False
        for node in list(graph):
            if (
                node.graph is graph
                and is_reshape(node)
                and (_join(graph, node) or _sink(graph, node) or _lift(graph, node))
            ):
                changed = True


def _join(graph: ir.Graph, node: ir.Node) -> bool:
    """Join a reshape with the one in front of it."""
    first = node.inputs[0].producer() if node.inputs[0] is not None else None
    source = None if first is None else first.inputs[0]
    output = node.outputs[0]
    before, after = dims(source), dims(output)
    if first is None or source is None or not is_reshape(first) or before is None or after is None:
        return False
    if before == after and before.count(None) <= 1 and not output.is_graph_output():
        replace(output, source)
    elif not output.is_graph_output() and after.count(None) <= 1 and 0 not in after:
        shape = np.asarray([-1 if d is None else d for d in after], np.int64)
        target = add_constant(graph, shape, f"{node.name}/shape")
        joined = new_node("Reshape", [source, target], origin=node, shape=output.shape)
        replace(output, insert_before(node, joined))
    else:
        return False
    graph.remove(node, safe=True)
    if not first.outputs[0].uses() and not first.outputs[0].is_graph_output():
        graph.remove(first, safe=True)
    return True


POINTWISE = ("Relu", "Clip", "Sigmoid", "HardSigmoid", "Tanh", "Add", "Mul", "Div", "Sub")


def _is_passable(node: ir.Node | None, value: ir.Value) -> bool:
    """Whether a node treats each element of ``value`` alike: per-tensor Q/DQ, an activation, a scalar's Add or Mul."""
    if node is None or not is_op(node, "QuantizeLinear", "DequantizeLinear", *POINTWISE):
        return False
    others = [constant(x) for x in node.inputs if x is not None and x is not value]
    return node.inputs[0] is value and all(x is not None and x.size == 1 and x.ndim <= 1 for x in others)


def _sink(graph: ir.Graph, node: ir.Node) -> bool:
    """Move a reshape below the pointwise operator that reads it."""
    below = only_consumer(node.outputs[0])
    source = node.inputs[0]
    if below is None or source is None:
        return False
    constants = _spread_constants(graph, node, below)
    passable = constants or _is_passable(below, node.outputs[0])
    if not passable or not (_worth_sinking(below) or (constants and _is_behind_conv(source))):
        return False
    output = below.outputs[0]
    if output.is_graph_output():
        return False
    shape = output.shape
    for index, value in constants.items():
        below.replace_input_with(index, value)
    below.replace_input_with(list(below.inputs).index(node.outputs[0]), source)
    output.shape = source.shape
    moved = ir.node(node.op_type, [output, *node.inputs[1:]], dict(node.attributes))
    moved.meta.update(node.meta)
    result = moved.outputs[0]
    result.shape = shape
    result.type = output.type
    output.replace_all_uses_with(result)
    moved.replace_input_with(0, output)
    graph.insert_after(below, moved)
    graph.remove(node, safe=True)
    return True


def _is_behind_conv(value: ir.Value) -> bool:
    """Whether only constants are added or multiplied between a convolution and ``value``."""
    node = producer(value)
    while node is not None and is_op(node, "Add", "Sub", "Mul", "Div"):
        data = [x for x in node.inputs if constant(x) is None]
        node = producer(data[0]) if len(data) == 1 else None
    return is_op(node, "Conv")


def _spread_constants(graph: ir.Graph, node: ir.Node, below: ir.Node) -> dict[int, ir.Value]:
    """Return the constants of an Add or Mul behind a Squeeze as they broadcast in front of it; empty if it is not one.

    That is what a bias or a normalization behind a one-dimensional convolution looks like.
    """
    value = node.outputs[0]
    size = rank(value)
    axis = single_axis(node, size + 1) if is_op(node, "Squeeze") and size is not None else None
    if axis is None or size is None or not is_op(below, "Add", "Sub", "Mul", "Div") or rank(below.outputs[0]) != size:
        return {}
    arrays = {i: constant(x) for i, x in enumerate(below.inputs) if x is not value}
    spread = {}
    for index, array in arrays.items():
        if array is None or array.ndim > size or dims(below.outputs[0]) != dims(value):
            return {}
        full = array.reshape((1,) * (size - array.ndim) + array.shape)
        spread[index] = np.expand_dims(full, axis)
    return {i: add_constant(graph, array, f"{below.name}/constant") for i, array in spread.items()}


def _worth_sinking(node: ir.Node) -> bool:
    """Whether a pointwise operator leads to another reshape, which the sinking one then joins."""
    value = node.outputs[0]
    reader = only_consumer(value)
    while reader is not None and _is_passable(reader, value):
        value = reader.outputs[0]
        reader = only_consumer(value)
    return is_reshape(reader)


def _lift(graph: ir.Graph, node: ir.Node) -> bool:
    """Move the reshape between a DQ and a matrix product above the Q, so that the DQ feeds the product directly."""
    reader, dequantize = only_consumer(node.outputs[0]), producer(node.inputs[0])
    quantize = producer(dequantize.inputs[0]) if is_op(dequantize, "DequantizeLinear") and dequantize else None
    if quantize is None or dequantize is None or not is_op(reader, "Gemm", "MatMul") or reader is None:
        return False
    source, scale = quantize.inputs[0], constant(operand(quantize, 1))
    alone = only_consumer(dequantize.outputs[0]) is node and only_consumer(quantize.outputs[0]) is dequantize
    if not alone or source is None or scale is None or scale.size != 1 or reader.inputs[0] is not node.outputs[0]:
        return False
    shape = node.outputs[0].shape
    replace(node.outputs[0], dequantize.outputs[0])
    graph.remove(node, safe=False)
    node.replace_input_with(0, source)
    graph.insert_before(quantize, node)
    quantize.replace_input_with(0, node.outputs[0])
    for moved in (quantize.outputs[0], dequantize.outputs[0]):
        moved.shape = shape
        moved.meta.pop(TENSOR, None)
    return True
