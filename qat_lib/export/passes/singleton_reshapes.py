"""Remove reshapes that only add, drop or move axes of size 1.

Keras's sequence GlobalAveragePool, Reshape to (1, 1, C), convolution becomes Flatten, Reshape and
Transpose through the layout passes. Such an operator moves no data. It sinks below pointwise
operators, is joined with its neighbours, and is removed if the shapes in front and behind are
equal. One between a DQ and a matrix product moves up instead.
"""

from __future__ import annotations

from typing import TypeGuard

import numpy as np
import onnx_ir as ir

from qat_lib.export.graph import (
    TENSOR,
    add_constant,
    attribute,
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
    scalar,
)
from qat_lib.export.passes.layout_axes import single_axis
from qat_lib.graph.roles import ARITHMETIC, PAIR, onnx_operators

RESHAPES = onnx_operators("reshape")


def is_reshape(node: ir.Node | None) -> TypeGuard[ir.Node]:
    """Return whether a node keeps the element order: a reshape or a trivial Transpose."""
    if not is_op(node, "Transpose"):
        return is_op(node, *RESHAPES)
    shape, perm = dims(operand(node, 0)), attribute(node, "perm")
    if shape is None or perm is None:
        return False
    kept = [axis for axis in perm if shape[axis] != 1]
    return kept == sorted(kept)


@lowering_pass
def eliminate_singleton_reshapes(model: ir.Model) -> None:
    """Sink reshapes below Q/DQ, join chains, and remove reshapes without effect."""
    graph = model.graph
    changed = True
    while changed:
        changed = False
        for node in list(graph):
            if (
                # The list is a snapshot: an earlier step may have removed the node.
                node.graph is graph
                and is_reshape(node)
                and (_join(graph, node) or _sink(graph, node) or _lift(graph, node))
            ):
                changed = True


def _join(graph: ir.Graph, node: ir.Node) -> bool:
    """Join a reshape with the one in front of it, if possible; return the success."""
    first, output = producer(node.inputs[0]), node.outputs[0]
    if not is_reshape(first) or output.is_graph_output():
        return False
    source = first.inputs[0]
    before, after = dims(source), dims(output)
    if source is None:
        return False
    if _undoes(node, first):
        replace(output, source)
    elif after is None or after.count(None) > 1:
        return False
    elif before == after:
        replace(output, source)
    # In a Reshape target, 0 would copy an input size.
    elif 0 not in after:
        shape = np.asarray([-1 if d is None else d for d in after], np.int64)
        target = add_constant(graph, shape, f"{node.name}/shape")
        joined = new_node("Reshape", [source, target], origin=node, shape=output.shape)
        replace(output, insert_before(node, joined))
    else:
        return False
    graph.remove(node, safe=True)
    # The first reshape may have other readers.
    if not first.outputs[0].uses() and not first.outputs[0].is_graph_output():
        graph.remove(first, safe=True)
    return True


def _undoes(node: ir.Node, first: ir.Node) -> bool:
    """Return whether a Squeeze and an Unsqueeze cancel for any other sizes."""
    if {node.op_type, first.op_type} != {"Squeeze", "Unsqueeze"}:
        return False
    size = rank(first.inputs[0] if is_op(first, "Squeeze") else first.outputs[0])
    axis = None if size is None else single_axis(first, size)
    return size is not None and axis is not None and axis == single_axis(node, size)


POINTWISE = PAIR | ARITHMETIC | onnx_operators("rectifier") | {"Sigmoid", "HardSigmoid", "Tanh"}


def is_pointwise_on(node: ir.Node | None, value: ir.Value) -> TypeGuard[ir.Node]:
    """Return whether a node is elementwise on ``value``: per-tensor Q/DQ or an activation."""
    if not is_op(node, *POINTWISE) or node.inputs[0] is not value:
        return False
    others = [x for x in node.inputs[1:] if x is not None]
    return all(scalar(x) is not None and rank(x) in (0, 1) for x in others)


def _sink(graph: ir.Graph, node: ir.Node) -> bool:
    """Move a reshape below its pointwise reader, if possible; return the success."""
    value, source = node.outputs[0], node.inputs[0]
    below = only_consumer(value)
    if below is None or source is None or below.outputs[0].is_graph_output():
        return False
    # Without another reshape below, nothing would be saved.
    if not is_pointwise_on(below, value) or not _worth_sinking(below):
        return False
    output = below.outputs[0]
    below.replace_input_with(list(below.inputs).index(value), source)
    moved = ir.node(node.op_type, [output, *node.inputs[1:]], dict(node.attributes))
    moved.meta.update(node.meta)
    result = moved.outputs[0]
    result.shape, output.shape = output.shape, source.shape
    result.type = output.type
    output.replace_all_uses_with(result)
    moved.replace_input_with(0, output)
    graph.insert_after(below, moved)
    graph.remove(node, safe=True)
    return True


def _worth_sinking(node: ir.Node) -> bool:
    """Return whether pointwise operators lead to a reshape for a join."""
    value = node.outputs[0]
    reader = only_consumer(value)
    while is_pointwise_on(reader, value):
        value = reader.outputs[0]
        reader = only_consumer(value)
    return is_reshape(reader)


def _lift(graph: ir.Graph, node: ir.Node) -> bool:
    """Move a reshape between DQ and matrix product above the Q, if possible; return the success."""
    output, dequantize = node.outputs[0], producer(node.inputs[0])
    reader = only_consumer(output)
    if not is_op(reader, "Gemm", "MatMul") or reader.inputs[0] is not output:
        return False
    if not _is_private(dequantize, "DequantizeLinear", node):
        return False
    quantize = producer(dequantize.inputs[0])
    if not _is_private(quantize, "QuantizeLinear", dequantize):
        return False
    replace(output, dequantize.outputs[0])
    graph.remove(node, safe=False)
    node.replace_input_with(0, quantize.inputs[0])
    graph.insert_before(quantize, node)
    quantize.replace_input_with(0, output)
    for moved in (quantize.outputs[0], dequantize.outputs[0]):
        moved.shape = output.shape
        moved.meta.pop(TENSOR, None)
    return True


def _is_private(node: ir.Node | None, op_type: str, reader: ir.Node) -> TypeGuard[ir.Node]:
    """Return whether ``reader`` is the only reader of a per-tensor Q or DQ."""
    return (
        is_op(node, op_type)
        and scalar(operand(node, 1)) is not None
        and only_consumer(node.outputs[0]) is reader
    )
