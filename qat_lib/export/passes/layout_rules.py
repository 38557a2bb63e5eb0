"""How each operator moves above a Transpose: which of its axes, attributes and constants have to be renamed.

A rule gets a node, looks whether a Transpose (permutation ``perm``, output axis i = input axis ``perm[i]``) stands in
front of it and, if moving pays, rewires the node to read the untransposed tensor and puts the Transpose behind.
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
    insert_before,
    is_op,
    new_node,
    operand,
    rank,
    set_int,
    set_ints,
)
from qat_lib.export.passes.layout_axes import move_above

Rule = Callable[[ir.Node], None]

# fmt: off
UNARY = (
    "Relu", "LeakyRelu", "Elu", "Selu", "Celu", "Sigmoid", "HardSigmoid", "HardSwish", "Tanh", "Erf", "Exp", "Log",
    "Sqrt", "Reciprocal", "Neg", "Abs", "Floor", "Ceil", "Round", "Sign", "Softplus", "Softsign", "Mish", "Gelu",
    "ThresholdedRelu", "Cast", "Identity", "Clip", "Not", "Sin", "Cos", "IsNaN", "QuantizeLinear", "DequantizeLinear",
)
BROADCASTING = (
    "Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Sum", "Mean", "Where", "Equal", "Greater", "GreaterOrEqual",
    "Less", "LessOrEqual", "And", "Or", "Mod", "PRelu",
)
# fmt: on
AXIS = ("Softmax", "LogSoftmax", "Hardmax", "Concat", "Split")
REDUCE = ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL2", "ReduceSumSquare")


def sink_rule(node: ir.Node) -> Rule | None:
    """Return the rule for an operator, or None when a Transpose can't pass it."""
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
    others = {"Pad": _pad, "Slice": _slice, "MatMul": _matmul, "Squeeze": move_above, "Unsqueeze": move_above}
    return others.get(node.op_type)


def permute_constant(graph: ir.Graph, value: ir.Value, perm: list[int]) -> ir.Value:
    """Return a constant operand with its axes in the order ``perm``; it broadcasts as before."""
    array = constant(value)
    if array is None or array.size == 1:
        return value
    full = array.reshape((1,) * (len(perm) - array.ndim) + array.shape)
    return add_constant(graph, full.transpose(perm), value.name or "constant")


def _transpose_of(value: ir.Value | None) -> tuple[ir.Value, list[int]] | None:
    node = None if value is None else value.producer()
    if node is None or not is_op(node, "Transpose") or node.inputs[0] is None:
        return None
    perm = attribute(node, "perm")
    return None if perm is None else (node.inputs[0], perm)


def _inverse(perm: list[int]) -> list[int]:
    return [perm.index(i) for i in range(len(perm))]


def _graph(node: ir.Node) -> ir.Graph:
    if not isinstance(node.graph, ir.Graph):
        raise TypeError("The node belongs to no graph.")
    return node.graph


def _put_behind(node: ir.Node, perm: list[int]) -> None:
    """Insert ``Transpose(perm)`` behind each output of ``node``, whose own layout is now the untransposed one."""
    back = _inverse(perm)
    for output in node.outputs:
        transpose = new_node("Transpose", [output], {"perm": perm}, origin=node, shape=output.shape, dtype=output.dtype)
        result = transpose.outputs[0]
        if output.is_graph_output():
            name = output.name
            output.name = None
            output.replace_all_uses_with(result, replace_graph_outputs=True)
            result.name = name
        else:
            output.replace_all_uses_with(result)
        transpose.replace_input_with(0, output)
        if output.shape is not None:
            output.shape = ir.Shape([output.shape[axis] for axis in back])
        _graph(node).insert_after(node, transpose)


def _unary(node: ir.Node) -> None:
    found = _transpose_of(operand(node, 0))
    if found is None:
        return
    scale = constant(operand(node, 1)) if is_op(node, "QuantizeLinear", "DequantizeLinear") else None
    if scale is not None and scale.size > 1:
        return
    source, perm = found
    node.replace_input_with(0, source)
    _put_behind(node, perm)


def _is_thin(value: ir.Value) -> bool:
    """Whether at most one axis besides the batch has more than one element, so that a Transpose costs nothing."""
    return value.shape is not None and sum(not isinstance(d, int) or d > 1 for d in value.shape[1:]) <= 1


def _broadcasting(node: ir.Node) -> None:
    values = [value for value in node.inputs if value is not None]
    found = [_transpose_of(value) for value in values]
    perms = [pair[1] for pair in found if pair is not None]
    if not perms:
        return
    perm = max(perms, key=perms.count)
    back = _inverse(perm)
    same = [pair is not None and pair[1] == perm for pair in found]
    others = [v for v, ok in zip(values, same, strict=True) if not ok and constant(v) is None]
    if any(rank(v) not in (0, len(perm)) for v in others):
        return
    if sum(same) < sum(1 for v in others if rank(v) and not _is_thin(v)) + (0 if any(same) else 1):
        return
    graph = _graph(node)
    for index, value in enumerate(node.inputs):
        if value is None:
            continue
        pair = _transpose_of(value)
        if pair is not None and pair[1] == perm:
            node.replace_input_with(index, pair[0])
        elif constant(value) is not None:
            node.replace_input_with(index, permute_constant(graph, value, back))
        elif rank(value):
            shape = None if value.shape is None else [value.shape[axis] for axis in back]
            early = new_node("Transpose", [value], {"perm": back}, origin=node, shape=shape, dtype=value.dtype)
            node.replace_input_with(index, insert_before(node, early))
    _put_behind(node, perm)


def _axis(node: ir.Node) -> None:
    data = [value for value in (node.inputs if node.op_type == "Concat" else node.inputs[:1]) if value is not None]
    found = [_transpose_of(value) for value in data]
    first = next((pair for pair in found if pair is not None), None)
    if first is None:
        return
    perm = first[1]
    back = _inverse(perm)
    same = [pair is not None and pair[1] == perm for pair in found]
    if 2 * sum(same) < len(same) or any(rank(value) != len(perm) for value in data):
        return
    graph = _graph(node)
    for index, (value, pair) in enumerate(zip(data, found, strict=True)):
        if pair is not None and pair[1] == perm:
            node.replace_input_with(index, pair[0])
        elif constant(value) is not None:
            array = constant(value)
            if array is not None:
                node.replace_input_with(index, add_constant(graph, array.transpose(back), value.name or "constant"))
        else:
            shape = None if value.shape is None else [value.shape[axis] for axis in back]
            early = new_node("Transpose", [value], {"perm": back}, origin=node, shape=shape, dtype=value.dtype)
            node.replace_input_with(index, insert_before(node, early))
    default = {"Softmax": -1, "LogSoftmax": -1, "Hardmax": -1}.get(node.op_type, 0)
    set_int(node, "axis", perm[attribute(node, "axis", default) % len(perm)])
    _put_behind(node, perm)


def _reduce(node: ir.Node) -> None:
    found = _transpose_of(operand(node, 0))
    if found is None:
        return
    source, perm = found
    axes = constant(operand(node, 1)) if len(node.inputs) > 1 else attribute(node, "axes")
    if axes is None or (len(node.inputs) > 1 and np.size(axes) == 0):
        return
    moved = sorted(perm[int(axis) % len(perm)] for axis in axes)
    keep = attribute(node, "keepdims", 1)
    kept = [axis for axis in perm if axis not in moved]
    if not keep and kept != sorted(kept):
        return  # The remaining axes come out in another order.
    node.replace_input_with(0, source)
    if len(node.inputs) > 1:
        node.replace_input_with(1, add_constant(_graph(node), np.asarray(moved, np.int64), f"{node.name}/axes"))
    else:
        set_ints(node, "axes", moved)
    if keep:
        _put_behind(node, perm)


def _pad(node: ir.Node) -> None:
    found = _transpose_of(operand(node, 0))
    pads = constant(operand(node, 1))
    if found is None or pads is None or operand(node, 3) is not None:
        return
    source, perm = found
    back = _inverse(perm)
    size = len(perm)
    moved = np.concatenate([pads[:size][back], pads[size:][back]])
    node.replace_input_with(0, source)
    node.replace_input_with(1, add_constant(_graph(node), moved, f"{node.name}/pads"))
    _put_behind(node, perm)


def _slice(node: ir.Node) -> None:
    found = _transpose_of(operand(node, 0))
    starts = constant(operand(node, 1))
    if found is None or starts is None:
        return
    source, perm = found
    axes = constant(operand(node, 3))
    if operand(node, 3) is not None and axes is None:
        return
    indices = range(len(starts)) if axes is None else [int(axis) % len(perm) for axis in axes]
    moved = np.asarray([perm[axis] for axis in indices], np.int64)
    value = add_constant(_graph(node), moved, f"{node.name}/axes")
    if len(node.inputs) < 4:
        node.resize_inputs(4)
    node.replace_input_with(0, source)
    node.replace_input_with(3, value)
    _put_behind(node, perm)


def _matmul(node: ir.Node) -> None:
    """Make a 1x1 convolution of a Dense layer on NHWC images (ConvNeXt's pointwise layers)."""
    found = _transpose_of(operand(node, 0))
    if found is None or found[1] != [0, 2, 3, 1] or node.outputs[0].is_graph_output():
        return
    weight = _pointwise_weight(node)
    if weight is None:
        return
    node.op_type = "Conv"
    node.replace_input_with(0, found[0])
    node.replace_input_with(1, weight)
    set_ints(node, "kernel_shape", [1, 1])
    _put_behind(node, [0, 2, 3, 1])


def _pointwise_weight(node: ir.Node) -> ir.Value | None:
    """Return the weight (inputs, outputs) of a MatMul as (outputs, inputs, 1, 1), integers and axis included."""
    value = operand(node, 1)
    dequantize = None if value is None else value.producer()
    if dequantize is None:
        array = constant(value)
        if array is None or array.ndim != 2 or value is None:
            return None
        return add_constant(_graph(node), array.T[:, :, None, None], value.name or "weight")
    integers, scale = constant(operand(dequantize, 0)), constant(operand(dequantize, 1))
    axis = attribute(dequantize, "axis", 1)
    if not is_op(dequantize, "DequantizeLinear") or integers is None or integers.ndim != 2 or scale is None:
        return None
    if scale.size > 1 and axis != 1:
        return None
    name = dequantize.inputs[0].name if dequantize.inputs[0] is not None else None
    moved = add_constant(_graph(node), integers.T[:, :, None, None], name or "integers")
    copy = new_node("DequantizeLinear", [moved, *dequantize.inputs[1:]], origin=dequantize, shape=moved.shape)
    set_int(copy, "axis", 0)
    copy.meta.update(dequantize.meta)
    if ORIGINAL in copy.meta:
        copy.meta[ORIGINAL] = copy.meta[ORIGINAL].T[:, :, None, None]
    return insert_before(node, copy)
