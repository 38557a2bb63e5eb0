"""Move the Squeeze behind a one-dimensional convolution below its readers.

Keras's one-dimensional layers become Unsqueeze, convolution, Squeeze. A Squeeze between a
convolution and a residual Add, a quantizer or an activation prevents their fusion. Each reader is
moved to the unsqueezed tensors and the Squeeze behind it, until the Squeeze meets the Unsqueeze of
the next layer.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from qat_lib.export.graph import (
    add_constant,
    attribute,
    constant,
    dims,
    insert_before,
    is_op,
    lowering_pass,
    new_node,
    operand,
    producer,
    rank,
    set_int,
)
from qat_lib.export.passes.layout_axes import single_axis
from qat_lib.export.passes.singleton_reshapes import is_pointwise_on
from qat_lib.graph.roles import ARITHMETIC, onnx_operators

SOURCES = (
    onnx_operators("convolution") | onnx_operators("max pool") | onnx_operators("average pool")
)
"""Operators of one-dimensional layers on images of height 1."""


@lowering_pass
def sink_squeezes(model: ir.Model) -> None:
    """Move Squeezes behind convolutions below elementwise operators, Pad and Concat."""
    graph = model.graph
    # Outputs of movable Squeezes, behind a convolution or pool or moved already, with their axes.
    moving: dict[ir.Value, int] = {}
    for node in list(graph):
        size = rank(operand(node, 0))
        if (
            is_op(node, "Squeeze")
            and is_op(producer(node.inputs[0]), *SOURCES)
            and size is not None
        ):
            axis = single_axis(node, size)
            if axis is not None:
                moving[node.outputs[0]] = axis
            continue
        axes = {moving[value] for value in node.inputs if value in moving}
        output = node.outputs[0]
        if len(axes) != 1 or dims(output) is None or output.is_graph_output():
            continue
        axis = axes.pop()
        operands = _operands(graph, node, axis, moving)
        if operands is not None:
            moving[_move(graph, node, operands, axis)] = axis


def _operands(
    graph: ir.Graph, node: ir.Node, axis: int, moving: dict[ir.Value, int]
) -> list[ir.Value | None] | None:
    """Return the operands of ``node`` with one more axis; None if the Squeeze can't pass it."""
    first, *others = node.inputs
    if is_op(node, *ARITHMETIC):
        return _broadcast(graph, node, axis, moving)
    if is_op(node, "Concat"):
        if not all(value in moving for value in node.inputs):
            return None
        position = attribute(node, "axis") % len(dims(node.outputs[0]) or [0])
        # Axes behind the new one move back by one.
        set_int(node, "axis", position + (position >= axis))
        return [_source(value) for value in node.inputs]
    if first not in moving:
        return None
    if is_op(node, "Pad"):
        pads = constant(operand(node, 1))
        if pads is None or operand(node, 3) is not None:
            return None
        widths = np.insert(pads.reshape(2, -1), axis, 0, axis=1).ravel()
        return [_source(first), add_constant(graph, widths, f"{node.name}/pads"), *others[1:]]
    if is_pointwise_on(node, first):
        return [_source(first), *others]
    return None


def _source(value: ir.Value | None) -> ir.Value | None:
    """Return the input of the Squeeze that writes ``value``."""
    squeeze = producer(value)
    return None if squeeze is None else squeeze.inputs[0]


def _broadcast(
    graph: ir.Graph, node: ir.Node, axis: int, moving: dict[ir.Value, int]
) -> list[ir.Value | None] | None:
    """Return the operands of an Add, Sub, Mul or Div with one more axis."""
    shape = dims(node.outputs[0]) or []
    # The fusion with a convolution is worth an Unsqueeze of the other operand.
    is_fusable = any(value in moving and _is_convolved(_source(value)) for value in node.inputs)
    moved: list[ir.Value | None] = []
    for value in node.inputs:
        array = constant(value)
        if value in moving:
            if dims(value) != shape:
                return None
            moved.append(_source(value))
        elif array is not None and array.ndim <= len(shape):
            full = array.reshape((1,) * (len(shape) - array.ndim) + array.shape)
            moved.append(
                value
                if array.size == 1
                else add_constant(graph, np.expand_dims(full, axis), f"{node.name}/constant")
            )
        elif value is not None and dims(value) == shape and is_fusable:
            moved.append(_unsqueeze(graph, node, value, axis))
        else:
            return None
    return moved


def _is_convolved(value: ir.Value | None) -> bool:
    """Return whether a convolution computes ``value``, apart from constants such as a bias."""
    node = producer(value)
    while is_op(node, *ARITHMETIC):
        data = [x for x in node.inputs if constant(x) is None]
        node = producer(data[0]) if len(data) == 1 else None
    return is_op(node, "Conv")


def _unsqueeze(graph: ir.Graph, node: ir.Node, value: ir.Value, axis: int) -> ir.Value:
    axes = add_constant(graph, np.asarray([axis], np.int64), f"{node.name}/axes")
    shape = _with_axis(value, axis)
    wide = new_node("Unsqueeze", [value, axes], origin=node, shape=shape, dtype=value.dtype)
    return insert_before(node, wide)


def _with_axis(value: ir.Value, axis: int) -> ir.Shape:
    """Return the shape of ``value`` with a size of 1 added at ``axis``."""
    sizes = list(value.shape or ())
    return ir.Shape([*sizes[:axis], 1, *sizes[axis:]])


def _move(graph: ir.Graph, node: ir.Node, operands: list[ir.Value | None], axis: int) -> ir.Value:
    """Set the operands of ``node``, squeeze its output, and return the squeezed tensor."""
    output = node.outputs[0]
    for index, value in enumerate(operands):
        node.replace_input_with(index, value)
    axes = add_constant(graph, np.asarray([axis], np.int64), f"{node.name}/axes")
    # The input is set after the readers have moved, or the Squeeze would read its own output.
    squeeze = new_node("Squeeze", [None, axes], origin=node, shape=output.shape, dtype=output.dtype)
    result = squeeze.outputs[0]
    output.replace_all_uses_with(result)
    squeeze.replace_input_with(0, output)
    output.shape = _with_axis(output, axis)
    graph.insert_after(node, squeeze)
    return result
