"""Replace values that PyTorch's exporter computes at run time although they are known."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from qat_lib.export.graph import (
    add_constant,
    attribute,
    constant,
    consumers,
    dims,
    is_op,
    operand,
    producer,
    replace,
)
from qat_lib.graph.roles import onnx_operators

CONVOLUTIONS = onnx_operators("convolution")


def simplify(model: ir.Model) -> None:
    """Write known shapes, types and parts statically, and drop zero biases, in place."""
    graph = model.graph
    for node in list(graph):
        if is_op(node, *CONVOLUTIONS) and _is_zeros(operand(node, 2)):
            node.resize_inputs(2)
        elif is_op(node, "CastLike"):
            _name_type(node)
        elif is_op(node, "Shape"):
            _write_shape(graph, node)
        elif is_op(node, "Gather"):
            _write_taken_sizes(graph, node)
        elif is_op(node, "SplitToSequence"):
            _write_split(graph, node)


def _is_zeros(bias: ir.Value | None) -> bool:
    """Return whether a bias is the exporter's zero, which is cast and expanded at run time."""
    node = producer(bias)
    while is_op(node, "Expand", "CastLike", "Cast"):
        bias = node.inputs[0]
        node = producer(bias)
    array = constant(bias)
    return is_op(node, "Constant") and array is not None and not array.any()


def _name_type(node: ir.Node) -> None:
    """Replace a CastLike to a known type by a Cast."""
    like = node.inputs[1]
    if like is not None and like.dtype is not None:
        node.op_type = "Cast"
        node.attributes["to"] = ir.AttrInt64("to", int(like.dtype))
        node.resize_inputs(1)
        node.outputs[0].dtype = like.dtype


def _write_shape(graph: ir.Graph, node: ir.Node) -> None:
    """Replace a Shape without open dimensions by a constant."""
    shape = dims(node.inputs[0])
    if shape is None:
        return
    part = shape[attribute(node, "start", 0) : attribute(node, "end", len(shape))]
    if None not in part and not node.outputs[0].is_graph_output():
        array = np.asarray(part, np.int64)
        replace(node.outputs[0], add_constant(graph, array, str(node.outputs[0].name)))
        graph.remove(node, safe=True)


def _write_taken_sizes(graph: ir.Graph, node: ir.Node) -> None:
    """Replace known dimensions taken from a Shape by a constant."""
    source, place = producer(node.inputs[0]), constant(operand(node, 1))
    shape = dims(source.inputs[0]) if is_op(source, "Shape") else None
    if shape is None or place is None or source is None:
        return
    # A Shape may return a slice of the dimensions (opset 15).
    part = shape[attribute(source, "start", 0) : attribute(source, "end", len(shape))]
    sizes = [part[index] for index in place.ravel()]
    if None not in sizes and not node.outputs[0].is_graph_output():
        array = np.asarray(sizes, np.int64).reshape(place.shape)
        replace(node.outputs[0], add_constant(graph, array, str(node.outputs[0].name)))
        graph.remove(node, safe=True)


def _write_split(graph: ir.Graph, node: ir.Node) -> None:
    """Replace a sequence of the parts of a tensor by the outputs of one Split."""
    sizes = _part_sizes(node)
    places = {reader: constant(operand(reader, 1)) for reader in consumers(node.outputs[0])}
    # Other readers need the sequence itself.
    known = all(is_op(reader, "SequenceAt") and places[reader] is not None for reader in places)
    whole = node.inputs[0]
    if known and whole is not None and _is_one_part(node):
        for reader in places:
            replace(reader.outputs[0], whole)
            graph.remove(reader, safe=True)
        graph.remove(node, safe=True)
        return
    if sizes is None or not known or not attribute(node, "keepdims", 1):
        return
    parts = add_constant(graph, np.asarray(sizes, np.int64), f"{node.name}/sizes")
    axis = attribute(node, "axis", 0)
    split = ir.node("Split", [node.inputs[0], parts], {"axis": axis}, num_outputs=len(sizes))
    split.name = node.name
    graph.insert_before(node, split)
    for reader, place in places.items():
        taken, part = reader.outputs[0], split.outputs[int(np.asarray(place).ravel()[0])]
        part.shape, part.type = taken.shape, taken.type
        replace(taken, part)
        graph.remove(reader, safe=True)
    graph.remove(node, safe=True)


def _is_one_part(node: ir.Node) -> bool:
    """Return whether a SplitToSequence takes parts of the tensor's own size, as x.chunk(1) does."""
    squeeze = producer(node.inputs[1])
    shape = producer(operand(squeeze, 0)) if is_op(squeeze, "Squeeze") else None
    if not is_op(shape, "Shape"):
        return False
    start, (sized, whole) = attribute(shape, "start", 0), (shape.inputs[0], node.inputs[0])
    if attribute(shape, "end") != start + 1 or not (
        sized and sized.shape and whole and whole.shape
    ):
        return False
    size = whole.shape[attribute(node, "axis", 0)]
    # Open sizes are equal by name.
    return sized.shape[start] == size and (isinstance(size, int) or size.value is not None)


def _part_sizes(node: ir.Node) -> list[int] | None:
    """Return the part sizes of a SplitToSequence; None if unknown."""
    given, shape = constant(operand(node, 1)), dims(node.inputs[0])
    if given is not None and given.ndim:
        return [int(size) for size in given]
    whole = None if shape is None else shape[attribute(node, "axis", 0)]
    if given is None or whole is None:
        return None
    size = int(given)
    return [min(size, whole - start) for start in range(0, whole, size)]
