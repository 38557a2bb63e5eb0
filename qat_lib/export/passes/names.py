"""Name every node and tensor ``<keras layer>/<operator>`` or ``<quantizer>/<operator>``.

These names join TensorRT's inspector, OpenVINO's execution graph and the reports.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx_ir as ir

from qat_lib.export.graph import LAYER, ORIGIN, QUANTIZER, is_op, lowering_pass

ROLES = {
    "QuantizeLinear": ("weight", "scale", "zero_point"),
    "DequantizeLinear": ("integers", "scale", "zero_point"),
    "Conv": ("input", "weight", "bias"),
    "ConvTranspose": ("input", "weight", "bias"),
    "Gemm": ("input", "weight", "bias"),
    "MatMul": ("input", "weight"),
    "BatchNormalization": ("input", "gamma", "beta", "mean", "variance"),
    "Reshape": ("input", "shape"),
    "Pad": ("input", "pads", "value", "axes"),
    "Clip": ("input", "min", "max"),
}
"""Operator -> roles of its inputs, for the names of constants."""


def owner(node: ir.Node) -> str:
    """Return the first part of a node's name: its quantizer, else its layer or a neighbour's."""
    if is_op(node, "QuantizeLinear", "DequantizeLinear") and QUANTIZER in node.meta:
        return str(node.meta[QUANTIZER])
    return str(_nearest(node).get(LAYER, "graph"))


def origin(node: ir.Node) -> str:
    """Return the Keras layer of a node, named as in plan and reports."""
    meta = _nearest(node)
    return str(meta.get(ORIGIN, meta.get(LAYER, "graph")))


def _nearest(node: ir.Node) -> Mapping[str, Any]:
    """Return the metadata of a node, or of a neighbour if the node has no layer."""
    # Nodes of the converter itself have no layer.
    for candidate in (node, *node.predecessors(), *node.successors()):
        if LAYER in candidate.meta:
            return candidate.meta
    return node.meta


@lowering_pass
def name_canonically(model: ir.Model) -> None:
    """Rename nodes, their outputs and initializers canonically.

    Inputs and outputs of the graph keep their names.
    """
    graph = model.graph
    kept = {str(value.name) for value in (*graph.inputs, *graph.outputs)}
    taken = set(kept)
    for node in graph:
        node.name = _unique(f"{owner(node)}/{node.op_type}", taken)
    tensors = set(kept)
    renamed: list[tuple[ir.Value, str]] = []
    for node in graph:
        for index, output in enumerate(node.outputs):
            if not output.is_graph_output():
                renamed.append((output, _unique(f"{node.name}:{index}", tensors)))
    for value in list(graph.initializers.values()):
        if not value.is_graph_output() and not value.is_graph_input():
            renamed.append((value, _unique(_initializer_name(value), tensors)))
    # In two steps with unused names between, because initializer names must be unique at any time.
    for index, (value, _) in enumerate(renamed):
        value.name = f"rename__value__{index}"
    for value, name in renamed:
        value.name = name
        # Remove tf2onnx's names of open dimensions: they depend on earlier exports of the process.
        if value.shape is not None:
            value.shape = ir.Shape([dim if isinstance(dim, int) else None for dim in value.shape])


def _initializer_name(value: ir.Value) -> str:
    use = next(iter(value.uses()), None)
    if use is None:
        return "graph/constant"
    roles = ROLES.get(use.node.op_type, ())
    return (
        f"{owner(use.node)}/{roles[use.idx]}"
        if use.idx < len(roles)
        else f"{use.node.name}/constant_{use.idx}"
    )


def _unique(name: str, taken: set[str]) -> str:
    candidate, count = name, 0
    while candidate in taken:
        count += 1
        candidate = f"{name}_{count}"
    taken.add(candidate)
    return candidate
