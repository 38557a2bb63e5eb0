"""Remove the NHWC/NCHW transposes that tf2onnx puts around every convolution and pool.

One rule does the work: an operator that only needs its axes renamed is moved above the Transpose in front of it
(the Transpose sinks), until it meets its inverse and both vanish. What remains at the graph's inputs is then
lifted the other way, to the input itself, where ``channels_first_input`` can take it off.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from qat_lib.export.graph import (
    add_constant,
    attribute,
    constant,
    consumers,
    insert_before,
    is_op,
    lowering_pass,
    new_node,
    operand,
    rank,
    replace,
)
from qat_lib.export.passes.layout_rules import permute_constant, sink_rule


def inverse(perm: list[int]) -> list[int]:
    """Return the permutation that undoes ``perm``."""
    return [perm.index(i) for i in range(len(perm))]


def transposed_from(value: ir.Value | None) -> tuple[ir.Value, list[int]] | None:
    """Return the tensor and the permutation that ``value`` is a transpose of."""
    node = None if value is None else value.producer()
    if node is None or not is_op(node, "Transpose"):
        return None
    source, perm = operand(node, 0), attribute(node, "perm")
    return None if source is None or perm is None else (source, perm)


def permuted_shape(value: ir.Value, perm: list[int]) -> ir.Shape | None:
    """Return the shape of ``value`` with its axes in the order ``perm``."""
    return None if value.shape is None else ir.Shape([value.shape[axis] for axis in perm])


@lowering_pass
def remove_transposes(model: ir.Model) -> None:
    """Sink every Transpose as far as it goes, cancel pairs, then lift the rest to the graph's inputs."""
    graph = model.graph
    for node in list(graph):
        if is_op(node, "Transpose"):
            _merge(graph, node)
        else:
            rule = sink_rule(node)
            if rule is not None:
                rule(node)
    for node in list(graph):
        if is_op(node, "Transpose"):
            _merge(graph, node)
    _share(graph)
    while any(_lift(graph, node) for node in list(graph) if is_op(node, "Transpose")):
        _share(graph)


def _merge(graph: ir.Graph, node: ir.Node) -> None:
    """Join a Transpose with the one in front of it; an identity disappears."""
    perm = attribute(node, "perm")
    if perm is None:
        return
    before = transposed_from(node.inputs[0])
    if before is not None:
        source, first = before
        perm = [first[axis] for axis in perm]
        node.replace_input_with(0, source)
        node.attributes["perm"] = ir.AttrInt64s("perm", perm)
    data = node.inputs[0]
    if perm == sorted(perm) and data is not None:
        output = node.outputs[0]
        if output.is_graph_output() and (data.is_graph_input() or data.is_graph_output()):
            return
        replace(output, data)
        graph.remove(node, safe=True)


def _share(graph: ir.Graph) -> None:
    """Keep one of several equal Transposes of a tensor."""
    kept: dict[tuple[ir.Value | None, tuple[int, ...]], ir.Node] = {}
    for node in list(graph):
        perm = attribute(node, "perm")
        if not is_op(node, "Transpose") or perm is None:
            continue
        first = kept.setdefault((node.inputs[0], tuple(perm)), node)
        if first is not node and not node.outputs[0].is_graph_output():
            replace(node.outputs[0], first.outputs[0])
            graph.remove(node, safe=True)


LIFTED = ("QuantizeLinear", "DequantizeLinear", "Cast", "Relu", "Clip", "Identity")


def _lift(graph: ir.Graph, node: ir.Node) -> bool:
    """Move a Transpose above the operator that computes its input, when it is that operator's only reader."""
    source, perm = node.inputs[0], attribute(node, "perm")
    above = None if source is None else source.producer()
    if source is None or above is None or source.is_graph_output() or consumers(source) != [node]:
        return False
    moved = [i for i, x in enumerate(above.inputs) if x is not None and rank(x) == len(perm) and not x.is_initializer()]
    pads = constant(operand(above, 1)) if is_op(above, "Pad") and len(above.inputs) < 4 else None
    simple = (is_op(above, *LIFTED) or pads is not None) and moved == [0]
    arithmetic = is_op(above, "Add", "Sub", "Mul", "Div") and len(moved) == 1
    if not (simple or arithmetic) or not _reaches_input(above.inputs[moved[0]]):
        return False
    data = above.inputs[moved[0]]
    if data is None:
        return False
    early = new_node(
        "Transpose", [data], {"perm": perm}, origin=node, shape=permuted_shape(data, perm), dtype=data.dtype
    )
    above.replace_input_with(moved[0], insert_before(above, early))
    if arithmetic:
        for index, value in enumerate(above.inputs):
            if index != moved[0] and value is not None:
                above.replace_input_with(index, permute_constant(graph, value, perm))
    if pads is not None:
        permuted = np.concatenate([pads[: len(perm)][perm], pads[len(perm) :][perm]])
        above.replace_input_with(1, add_constant(graph, permuted, f"{above.name}/pads"))
    above.outputs[0].shape = permuted_shape(source, perm)
    replace(node.outputs[0], source)
    graph.remove(node, safe=True)
    return True


def _reaches_input(value: ir.Value | None) -> bool:
    """Whether only simple operators lie between a graph input and ``value``."""
    while value is not None:
        if value.is_graph_input():
            return True
        node = value.producer()
        if node is None or not is_op(node, *LIFTED, "Pad", "Add", "Sub", "Mul", "Div"):
            return False
        data = [x for x in node.inputs if x is not None and not x.is_initializer()]
        value = data[0] if len(data) == 1 else None
    return False
