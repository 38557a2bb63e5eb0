"""Merge the Add of a constant into the bias of its producer."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from qat_lib.export.graph import (
    add_constant,
    attribute,
    constant,
    is_op,
    lowering_pass,
    only_consumer,
    operand,
    rank,
    replace,
)
from qat_lib.graph.roles import onnx_operators

CONVOLUTIONS = onnx_operators("convolution")
WEIGHTED = onnx_operators("weighted")


def weight_shape(node: ir.Node) -> tuple[int, ...] | None:
    """Return the weight shape of a weighted operator, or None if it is not constant."""
    value = operand(node, 1)
    source = None if value is None else value.producer()
    if source is not None and is_op(source, "DequantizeLinear"):
        value = operand(source, 0)
    array = constant(value)
    # The integers have the shape of the weight.
    return None if array is None else array.shape


def channel_axis(node: ir.Node) -> int:
    """Return the axis of the output channels in the weight's ONNX layout."""
    if is_op(node, "Conv"):
        return 0
    if is_op(node, "Gemm"):
        return 0 if attribute(node, "transB", 0) else 1
    return 1


def output_channels(node: ir.Node) -> int | None:
    """Return the output channels of an operator with a constant weight."""
    shape = weight_shape(node)
    if shape is None or (is_op(node, "MatMul") and len(shape) != 2):
        return None
    # The weight of a ConvTranspose is (inputs, outputs per group, ...).
    groups = attribute(node, "group", 1) if is_op(node, "ConvTranspose") else 1
    return int(shape[channel_axis(node)]) * int(groups)


def per_channel(value: ir.Value | None, channels: int, size: int, axis: int) -> np.ndarray | None:
    """Return a constant as one value per channel, if it broadcasts along ``axis`` only."""
    array = constant(value)
    if array is None or array.ndim > size:
        return None
    full = array.reshape((1,) * (size - array.ndim) + array.shape)
    if any(dim != 1 for i, dim in enumerate(full.shape) if i != axis) or full.shape[axis] not in (
        1,
        channels,
    ):
        return None
    return np.broadcast_to(full.ravel(), (channels,))


def output_axis(node: ir.Node, size: int) -> int:
    """Return the channel axis in the output of a weighted operator."""
    return 1 if is_op(node, *CONVOLUTIONS) else size - 1


@lowering_pass
def merge_bias(model: ir.Model) -> None:
    """Merge constant Adds into the bias of a convolution or Gemm."""
    graph = model.graph
    for node in list(graph):
        channels = output_channels(node) if is_op(node, *WEIGHTED) else None
        add = only_consumer(node.outputs[0])
        size = rank(node.outputs[0])
        if channels is None or add is None or size is None or not is_op(add, "Add"):
            continue
        # Either operand of the Add may be the constant.
        other = add.inputs[1] if add.inputs[0] is node.outputs[0] else add.inputs[0]
        extra = per_channel(other, channels, size, output_axis(node, size))
        merged = None if extra is None else _with_bias(graph, node, extra)
        if merged is not None:
            replace(add.outputs[0], merged.outputs[0])
            graph.remove(add, safe=True)


def _with_bias(graph: ir.Graph, node: ir.Node, extra: np.ndarray) -> ir.Node | None:
    """Add ``extra`` to the bias of a weighted operator; a MatMul of rank 2 becomes a Gemm."""
    if is_op(node, "MatMul"):
        if rank(node.inputs[0]) != 2:
            return None
        node.op_type = "Gemm"
    # Other factors would scale the addition, too.
    if is_op(node, "Gemm") and (
        attribute(node, "beta", 1.0) != 1.0 or attribute(node, "alpha", 1.0) != 1.0
    ):
        return None
    old = operand(node, 2)
    bias = constant(old)
    if old is not None and bias is None:
        return None
    total = (
        extra
        if bias is None
        else np.broadcast_to(bias.ravel(), extra.shape).astype(np.float64) + extra
    )
    set_bias(graph, node, total)
    return node


def set_bias(graph: ir.Graph, node: ir.Node, bias: np.ndarray) -> None:
    """Set the bias of a Conv, ConvTranspose or Gemm, in the type of its input."""
    name = f"{node.meta.get('keras_layer', node.name)}/bias"
    data = operand(node, 0)
    dtype = np.float32 if data is None or data.dtype is None else data.dtype.numpy()
    value = add_constant(graph, np.ascontiguousarray(bias, dtype), name)
    node.resize_inputs(3)
    node.replace_input_with(2, value)
