"""Rules to move each operator above a Transpose: axes, attributes and constants.

A rule checks for a Transpose (permutation ``perm``, output axis i = input axis ``perm[i]``) in
front of a node. If the move is profitable, it rewires the node to the untransposed tensor and
inserts the Transpose behind.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from qat_lib.export.graph import (
    ORIGINAL,
    add_constant,
    attribute,
    constant,
    dims,
    insert_before,
    is_op,
    new_node,
    operand,
    producer,
    rank,
    set_int,
    set_ints,
)
from qat_lib.export.passes.layout_axes import move_above
from qat_lib.export.passes.transposes import (
    graph_of,
    has_many_scales,
    inverse,
    permutation,
    permute_pads,
    put_behind,
    put_in_front,
    transposed_from,
)
from qat_lib.graph.roles import PAIR, onnx_operators

Rule = Callable[[ir.Node], None]

UNARY = onnx_operators("unary") | PAIR
BROADCASTING = onnx_operators("broadcasting")
AXIS = onnx_operators("axis")
REDUCE = onnx_operators("reduction")


def sink_rule(node: ir.Node) -> Rule | None:
    """Return the rule of an operator, or None if no Transpose can pass it."""
    if node.domain not in ("", "ai.onnx"):
        return None
    if node.op_type in UNARY:
        return _unary
    if node.op_type in BROADCASTING:
        return _broadcasting
    if node.op_type in AXIS:
        return _axis
    if node.op_type in REDUCE:
        return _reduce
    others = {
        "Pad": _pad,
        "Slice": _slice,
        "MatMul": _matmul,
        "Squeeze": move_above,
        "Unsqueeze": move_above,
    }
    return others.get(node.op_type)


def _unary(node: ir.Node) -> None:
    found = transposed_from(operand(node, 0))
    if found is None or has_many_scales(node):
        return
    source, perm = found
    node.replace_input_with(0, source)
    put_behind(node, perm)


def _is_thin(value: ir.Value | None) -> bool:
    """Return whether a Transpose is free: at most one non-batch axis exceeds 1."""
    return sum(d != 1 for d in (dims(value) or [])[1:]) <= 1


def _broadcasts(value: ir.Value | None, size: int) -> bool:
    """Return whether the axes of an operand can be renamed for a result of rank ``size``."""
    array = constant(value)
    return rank(value) in (0, size) if array is None else array.ndim <= size


def _broadcasting(node: ir.Node) -> None:
    found = [perm for perm in map(permutation, node.inputs) if perm is not None]
    if not found:
        return
    # The most frequent permutation leaves the fewest Transposes on the other operands.
    perm = max(found, key=found.count)
    costly = 0
    for value in node.inputs:
        if permutation(value) == perm:
            continue
        if not _broadcasts(value, len(perm)):
            return
        # Such an operand gets a Transpose of its own.
        costly += constant(value) is None and not _is_thin(value)
    if found.count(perm) < costly:
        return
    for index in range(len(node.inputs)):
        put_in_front(node, index, perm)
    put_behind(node, perm)


def _axis(node: ir.Node) -> None:
    data = node.inputs if node.op_type == "Concat" else node.inputs[:1]
    perms = [permutation(value) for value in data]
    perm = next((perm for perm in perms if perm is not None), None)
    if (
        perm is None
        or 2 * perms.count(perm) < len(data)
        or any(rank(value) != len(perm) for value in data)
    ):
        return
    for index in range(len(data)):
        put_in_front(node, index, perm)
    # Defaults of ONNX.
    default = -1 if is_op(node, "Softmax", "LogSoftmax", "Hardmax") else 0
    set_int(node, "axis", perm[attribute(node, "axis", default) % len(perm)])
    put_behind(node, perm)


def _reduce(node: ir.Node) -> None:
    found, given = transposed_from(operand(node, 0)), operand(node, 1)
    axes = attribute(node, "axes") if given is None else constant(given)
    if found is None or axes is None:
        return
    source, perm = found
    moved = sorted(perm[int(axis) % len(perm)] for axis in axes)
    keep = attribute(node, "keepdims", 1)
    kept = [axis for axis in perm if axis not in moved]
    if not keep and kept != sorted(kept):
        return  # The remaining axes come out in another order.
    node.replace_input_with(0, source)
    if given is None:
        set_ints(node, "axes", moved)
    else:
        node.replace_input_with(
            1, add_constant(graph_of(node), np.asarray(moved, np.int64), f"{node.name}/axes")
        )
    # Otherwise the reduced axes are gone, and the remaining order is the original one.
    if keep:
        put_behind(node, perm)


def _pad(node: ir.Node) -> None:
    found = transposed_from(operand(node, 0))
    pads = constant(operand(node, 1))
    if found is None or pads is None or operand(node, 3) is not None:
        return
    source, perm = found
    node.replace_input_with(0, source)
    node.replace_input_with(
        1, permute_pads(graph_of(node), pads, inverse(perm), f"{node.name}/pads")
    )
    put_behind(node, perm)


def _slice(node: ir.Node) -> None:
    found, given = transposed_from(operand(node, 0)), operand(node, 3)
    starts = constant(operand(node, 1))
    if found is None or starts is None:
        return
    source, perm = found
    axes = np.arange(len(starts)) if given is None else constant(given)
    if axes is None:
        return
    moved = np.asarray([perm[int(axis) % len(perm)] for axis in axes], np.int64)
    node.resize_inputs(max(4, len(node.inputs)))
    node.replace_input_with(0, source)
    node.replace_input_with(3, add_constant(graph_of(node), moved, f"{node.name}/axes"))
    put_behind(node, perm)


def _matmul(node: ir.Node) -> None:
    """Convert a Dense layer on NHWC images, such as ConvNeXt's, to a 1x1 convolution."""
    found = transposed_from(operand(node, 0))
    if found is None or found[1] != [0, 2, 3, 1] or node.outputs[0].is_graph_output():
        return
    source, perm = found
    weight = _pointwise_weight(node)
    if weight is None:
        return
    node.op_type = "Conv"
    node.replace_input_with(0, source)
    node.replace_input_with(1, weight)
    set_ints(node, "kernel_shape", [1, 1])
    put_behind(node, perm)


def _pointwise(weight: np.ndarray) -> np.ndarray:
    """Return a weight (inputs, outputs) as (outputs, inputs, 1, 1)."""
    return weight.T[:, :, None, None]


def _pointwise_weight(node: ir.Node) -> ir.Value | None:
    """Return the weight of a MatMul as a convolution weight, with integers and axis."""
    value, graph = operand(node, 1), graph_of(node)
    array, dequantize = constant(value), producer(value)
    if value is not None and array is not None:
        if array.ndim != 2:
            return None
        return add_constant(graph, _pointwise(array), value.name or "weight")
    if not is_op(dequantize, "DequantizeLinear"):
        return None
    integers, scale = constant(operand(dequantize, 0)), constant(operand(dequantize, 1))
    if integers is None or integers.ndim != 2 or scale is None:
        return None
    if scale.size > 1 and attribute(dequantize, "axis", 1) != 1:
        return None
    moved = add_constant(graph, _pointwise(integers), f"{node.name}/integers")
    # A copy: other layers may read the DQ as a matrix.
    copy = new_node(
        "DequantizeLinear", [moved, *dequantize.inputs[1:]], origin=dequantize, shape=moved.shape
    )
    set_int(copy, "axis", 0)
    copy.meta.update(dequantize.meta)
    if ORIGINAL in copy.meta:
        copy.meta[ORIGINAL] = _pointwise(copy.meta[ORIGINAL])
    return insert_before(node, copy)
