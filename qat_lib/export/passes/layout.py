"""Remove the NHWC/NCHW transposes of tf2onnx around every convolution and pool.

One rule does most of the work: an operator that only requires renamed axes is moved above the
Transpose in front of it (the Transpose sinks), until the Transpose meets its inverse and both
vanish. The remaining transposes near the graph's inputs are then lifted to the input itself, where
``channels_first_input`` can remove them.
"""

from __future__ import annotations

import onnx_ir as ir

from qat_lib.export.graph import (
    attribute,
    constant,
    is_op,
    lowering_pass,
    only_consumer,
    operand,
    producer,
    rank,
    replace,
    set_ints,
)
from qat_lib.export.passes.layout_rules import sink_rule
from qat_lib.export.passes.transposes import (
    has_many_scales,
    inverse,
    permute_pads,
    permuted_shape,
    put_in_front,
    transposed_from,
)
from qat_lib.graph.roles import ARITHMETIC, PAIR, onnx_operators


@lowering_pass
def remove_transposes(model: ir.Model) -> None:
    """Sink Transposes, cancel pairs, and lift the rest to the inputs."""
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
    # One lift may enable others, and a lifted Transpose may equal an existing one.
    while any(_lift(graph, node) for node in list(graph) if is_op(node, "Transpose")):
        _share(graph)


def _merge(graph: ir.Graph, node: ir.Node) -> None:
    """Merge a Transpose with the preceding one; remove an identity."""
    found = transposed_from(node.outputs[0])
    if found is None:
        return
    data, perm = found
    before = transposed_from(data)
    if before is not None:
        data, first = before
        perm = [first[axis] for axis in perm]
        node.replace_input_with(0, data)
        set_ints(node, "perm", perm)
    output = node.outputs[0]
    # A graph output can't be a graph input or another output.
    needed = output.is_graph_output() and (data.is_graph_input() or data.is_graph_output())
    if perm == sorted(perm) and not needed:
        replace(output, data)
        graph.remove(node, safe=True)


def _share(graph: ir.Graph) -> None:
    """Merge equal Transposes of a tensor."""
    kept: dict[tuple[ir.Value | None, tuple[int, ...]], ir.Node] = {}
    for node in list(graph):
        perm = attribute(node, "perm")
        if not is_op(node, "Transpose") or perm is None:
            continue
        first = kept.setdefault((node.inputs[0], tuple(perm)), node)
        if first is not node and not node.outputs[0].is_graph_output():
            replace(node.outputs[0], first.outputs[0])
            graph.remove(node, safe=True)


LIFTED = PAIR | onnx_operators("rectifier") | {"Cast", "Identity"}


def _lift(graph: ir.Graph, node: ir.Node) -> bool:
    """Move a Transpose above the preceding operator, if it is the only reader."""
    above, perm = producer(node.inputs[0]), attribute(node, "perm")
    if above is None or perm is None or only_consumer(above.outputs[0]) is not node:
        return False
    index = _moved_operand(above, len(perm))
    if index is None or not _reaches_input(above.inputs[index], len(perm)):
        return False
    pads = constant(operand(above, 1)) if is_op(above, "Pad") else None
    if pads is not None:
        above.replace_input_with(1, permute_pads(graph, pads, perm, f"{above.name}/pads"))
    # The other inputs of a Pad have no image axes.
    for place in range(len(above.inputs)) if pads is None else [index]:
        put_in_front(above, place, inverse(perm))
    output = above.outputs[0]
    output.shape = permuted_shape(output, perm)
    replace(node.outputs[0], output)
    graph.remove(node, safe=True)
    return True


def _moved_operand(node: ir.Node, size: int) -> int | None:
    """Return the operand that can take the Transpose of the output, or None.

    The other operands must be constants or scalars, available in any layout.
    """
    moved = []
    for index, value in enumerate(node.inputs):
        if value is not None and constant(value) is None and rank(value) != 0:
            moved.append(index)
    # Two moved operands would need two Transposes, and a smaller rank broadcasts along other axes.
    if [rank(node.inputs[i]) for i in moved] != [size]:
        return None
    passable = is_op(node, *LIFTED) and not has_many_scales(node)
    padding = is_op(node, "Pad") and operand(node, 3) is None
    return moved.pop() if is_op(node, *ARITHMETIC) or passable or padding else None


def _reaches_input(value: ir.Value | None, size: int) -> bool:
    """Return whether only operators that a Transpose can pass are in front of ``value``."""
    while (node := producer(value)) is not None:
        index = _moved_operand(node, size)
        if index is None:
            return False
        value = node.inputs[index]
    return True
