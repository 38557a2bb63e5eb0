"""Undo forms of PyTorch's exporter that compute at run time what is known."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from qat_lib.export.graph import (
    add_constant,
    attribute,
    constant,
    dims,
    is_op,
    operand,
    producer,
    replace,
)
from qat_lib.graph.roles import onnx_operators

CONVOLUTIONS = onnx_operators("convolution")


def simplify(model: ir.Model) -> None:
    """Write known shapes and types as constants, and leave out biases of zeros, in place."""
    graph = model.graph
    for node in list(graph):
        if is_op(node, *CONVOLUTIONS) and _is_zeros(operand(node, 2)):
            node.resize_inputs(2)
        elif is_op(node, "CastLike"):
            _name_type(node)
        elif is_op(node, "Shape"):
            _write_shape(graph, node)


def _is_zeros(bias: ir.Value | None) -> bool:
    """Whether a bias is the exporter's: a zero, cast and expanded at run time."""
    node = producer(bias)
    while is_op(node, "Expand", "CastLike", "Cast"):
        bias = node.inputs[0]
        node = producer(bias)
    array = constant(bias)
    return is_op(node, "Constant") and array is not None and not array.any()


def _name_type(node: ir.Node) -> None:
    """Write a CastLike to a known type as a Cast."""
    like = node.inputs[1]
    if like is not None and like.dtype is not None:
        node.op_type = "Cast"
        node.attributes["to"] = ir.AttrInt64("to", int(like.dtype))
        node.resize_inputs(1)
        node.outputs[0].dtype = like.dtype


def _write_shape(graph: ir.Graph, node: ir.Node) -> None:
    """Write a Shape without an open dimension as a constant."""
    shape = dims(node.inputs[0])
    if shape is None:
        return
    part = shape[attribute(node, "start", 0) : attribute(node, "end", len(shape))]
    if None not in part and not node.outputs[0].is_graph_output():
        array = np.asarray(part, np.int64)
        replace(node.outputs[0], add_constant(graph, array, str(node.outputs[0].name)))
        graph.remove(node, safe=True)
