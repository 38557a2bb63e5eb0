"""Remove unchanged values from the state of a Loop.

tf2onnx passes the weights of a recurrent layer to the Loop as state, and the body returns them
unchanged. The body can read them from the enclosing graph instead. OpenVINO rejects a body with an
input that is also an output.
"""

from __future__ import annotations

import onnx_ir as ir

from qat_lib.export.graph import attribute, is_op, lowering_pass

CONTROL = 2
"""Number of inputs of a Loop and its body in front of the state: trip count or iteration, and
condition."""


@lowering_pass
def hoist_loop_invariants(model: ir.Model) -> None:
    """Read unchanged values in the body of each Loop from the enclosing graph."""
    for node in list(model.graph):
        body = attribute(node, "body")
        if not is_op(node, "Loop") or body is None:
            continue
        outer: dict[int, ir.Value] = {}
        for i, given in enumerate(node.inputs[CONTROL:]):
            # The first output of the body is its condition.
            # Identity of the values: the body returns the very input.
            same = body.outputs[i + 1] is body.inputs[i + CONTROL]
            if same and given is not None and not node.outputs[i].is_graph_output():
                outer[i] = given
        if outer:
            _hoist(model.graph, node, body, outer)


def _hoist(graph: ir.Graph, node: ir.Node, body: ir.Graph, outer: dict[int, ir.Value]) -> None:
    """Replace a Loop by one without the state values of ``outer``, given by index."""
    # From the end, so that the remaining indices are valid.
    for i in sorted(outer, reverse=True):
        body.outputs.pop(i + 1)
        body.inputs.pop(i + CONTROL).replace_all_uses_with(outer[i])
    rest = ir.node(
        "Loop",
        [x for i, x in enumerate(node.inputs) if i - CONTROL not in outer],
        {"body": body},
        num_outputs=len(node.outputs) - len(outer),
        name=node.name,
    )
    rest.meta.update(node.meta)
    left = iter(rest.outputs)
    for i, output in enumerate(node.outputs):
        new = outer.get(i)
        if new is None:
            new = next(left)
            new.name, new.shape, new.type = output.name, output.shape, output.type
        output.replace_all_uses_with(new, replace_graph_outputs=True)
    graph.insert_before(node, rest)
    graph.remove(node, safe=True)
