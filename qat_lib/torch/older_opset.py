"""Rewrite a graph of operator set 18 in an older one.

Between sets 13 and 18, operators gained types, attributes and inputs, and reductions take their
axes as an input. ONNX's version converter can't downgrade several operators, such as Pad.
Therefore this module rewrites each operator and drops unused additions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from qat_lib.errors import ExportError
from qat_lib.export.graph import (
    add_constant,
    attribute,
    constant,
    dims,
    insert_before,
    is_op,
    new_node,
    operand,
    replace,
    set_ints,
)

AS_BEFORE = {
    "allowzero": 0,
    "antialias": 0,
    "ceil_mode": 0,
    "coordinate_transformation_mode": "output_half_pixel",
    "keep_aspect_ratio_policy": "stretch",
    "layout": 0,
    "noop_with_empty_axes": 0,
    "reduction": "none",
    "start": 0,
    "training_mode": 0,
}
"""New attribute -> its value that is equivalent to the older operator."""


class NewerOperatorError(ExportError):
    """A graph needs an operator that its operator set lacks."""


def lower_opset(model: ir.Model, opset: int) -> None:
    """Rewrite a model's nodes in place for ``opset`` (13 to 17).

    Raises:
        NewerOperatorError: the operator set lacks an operator or a requested option.
    """
    graph = model.graph
    for node in list(graph):
        if is_op(node, "Mish"):
            _write_mish(graph, node)
    for node in graph:
        schema = _schema(node, opset)
        if is_op(node, "Reshape") and attribute(node, "allowzero", 0):
            target = constant(operand(node, 1))
            if target is not None and 0 not in target:
                del node.attributes["allowzero"]
        if is_op(node, "Split") and "num_outputs" in node.attributes:
            _write_sizes(graph, node)
        if "axes" in schema.attributes and operand(node, 1) is not None:
            _write_axes(node, opset)
        # Drop attributes that the older operator lacks, if they have no effect.
        for name in set(node.attributes) - set(schema.attributes):
            if name not in AS_BEFORE or attribute(node, name) != AS_BEFORE[name]:
                raise _missing(f"{node.op_type} with {name}={attribute(node, name)!r}", opset)
            del node.attributes[name]
        if len(node.inputs) > schema.max_input:
            raise _missing(f"{node.op_type} with {len(node.inputs)} inputs", opset)
        # The recorded version would contradict the new operator set.
        node.version = None
    graph.opset_imports[""] = opset


def _missing(what: str, opset: int) -> NewerOperatorError:
    return NewerOperatorError(
        f"Expected operators of ONNX operator set {opset}. The module needs {what}, which a newer "
        "one has. Export with opset=18, or another up to 21."
    )


def _schema(node: ir.Node, opset: int) -> Any:
    try:
        return onnx.defs.get_schema(node.op_type, opset, "")
    except onnx.defs.SchemaError as error:
        raise _missing(node.op_type, opset) from error


def _write_mish(graph: ir.Graph, node: ir.Node) -> None:
    """Write ``mish(x)`` as ``x * tanh(softplus(x))``."""
    source, shape = node.inputs[0], node.outputs[0].shape
    value = source
    for op_type in ("Softplus", "Tanh"):
        value = insert_before(node, new_node(op_type, [value], origin=node, shape=shape))
    product = new_node("Mul", [source, value], origin=node, shape=shape)
    replace(node.outputs[0], insert_before(node, product))
    graph.remove(node, safe=True)


def _write_sizes(graph: ir.Graph, node: ir.Node) -> None:
    """Replace the number of parts of a Split by their sizes."""
    del node.attributes["num_outputs"]
    shapes = [dims(output) for output in node.outputs]
    axis = attribute(node, "axis", 0)
    sizes = [None if shape is None else shape[axis] for shape in shapes]
    # Without sizes, older Splits divide equally: only an uneven split needs them.
    if None not in sizes and len(set(sizes)) > 1:
        node.resize_inputs(2)
        array = np.asarray(sizes, np.int64)
        node.replace_input_with(1, add_constant(graph, array, f"{node.name}/sizes"))


def _write_axes(node: ir.Node, opset: int) -> None:
    """Write the axes of a reduction as an attribute."""
    axes = constant(node.inputs[1])
    if axes is None:
        raise _missing(f"{node.op_type} over axes that are computed", opset)
    if axes.size:
        set_ints(node, "axes", axes.ravel().tolist())
    node.resize_inputs(1)
