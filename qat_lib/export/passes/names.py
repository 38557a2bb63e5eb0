"""Give every node and tensor its canonical name: ``<keras layer>/<operator>`` or ``<quantizer>/<operator>``.

TensorRT's inspector, OpenVINO's execution graph and the reports are joined by these names.
"""

from __future__ import annotations

import onnx_ir as ir

from qat_lib.export.graph import LAYER, QUANTIZER, consumers, is_op, lowering_pass

ROLES = {
    "QuantizeLinear": ("input", "scale", "zero_point"),
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


def owner(node: ir.Node) -> str:
    """Return what a node is named after: its quantizer, else its layer, else the layer of a neighbour."""
    if is_op(node, "QuantizeLinear", "DequantizeLinear") and QUANTIZER in node.meta:
        return str(node.meta[QUANTIZER])
    if LAYER in node.meta:
        return str(node.meta[LAYER])
    for neighbour in (*node.predecessors(), *node.successors()):
        if LAYER in neighbour.meta:
            return str(neighbour.meta[LAYER])
    return "graph"


@lowering_pass
def name_canonically(model: ir.Model) -> None:
    """Rename nodes, their outputs and the initializers; inputs and outputs of the graph keep their names."""
    graph = model.graph
    kept = {value.name for value in (*graph.inputs, *graph.outputs)}
    taken: set[str] = set(filter(None, kept))
    for index, node in enumerate(graph):
        node.name = f"rename__{index}"
    for node in graph:
        node.name = _unique(f"{owner(node)}/{node.op_type}", taken)
    tensors: set[str] = set(filter(None, kept))
    renamed: list[tuple[ir.Value, str]] = []
    for node in graph:
        for index, output in enumerate(node.outputs):
            if output.name not in kept or not output.is_graph_output():
                renamed.append((output, _unique(f"{node.name}:{index}", tensors, suffix=False)))
    for value in list(graph.initializers.values()):
        if not value.is_graph_output() and not value.is_graph_input():
            renamed.append((value, _unique(_initializer_name(value), tensors)))
    for index, (value, _) in enumerate(renamed):
        value.name = f"rename__value__{index}"
    for value, name in renamed:
        value.name = name


def _initializer_name(value: ir.Value) -> str:
    readers = consumers(value)
    if not readers:
        return "graph/constant"
    use = next(iter(value.uses()))
    role = ROLES.get(use.node.op_type, ())
    if is_op(use.node, "QuantizeLinear") and use.idx == 0:
        return f"{owner(use.node)}/weight"
    label = role[use.idx] if use.idx < len(role) else f"constant_{use.idx}"
    if is_op(use.node, "DequantizeLinear", "QuantizeLinear"):
        return f"{owner(use.node)}/{label}"
    return f"{use.node.name}/{label}" if label.startswith("constant") else f"{owner(use.node)}/{label}"


def _unique(name: str, taken: set[str], *, suffix: bool = True) -> str:
    candidate, count = name, 0
    while candidate in taken:
        count += 1
        candidate = f"{name}_{count}"
    taken.add(candidate)
    return candidate
