"""Take values that a Loop passes on unchanged out of its state.

tf2onnx gives a recurrent layer's weights to the Loop as state that the body returns as it came. The
body can read them from the graph around it. OpenVINO refuses a body with an input that is an
output, too.
"""

from __future__ import annotations

import onnx_ir as ir

from qat_lib.export.graph import attribute, is_op, lowering_pass

CONTROL = 2
"""Inputs of a Loop and of its body in front of the state: trip count or iteration, condition."""


@lowering_pass
def hoist_loop_invariants(model: ir.Model) -> None:
    """Let the body of each Loop read such values from the graph around it."""
    for node in list(model.graph):
        body = attribute(node, "body")
        if not is_op(node, "Loop") or body is None:
            continue
        state = range(len(node.inputs) - CONTROL)
        # The body returns its condition in front of the state.
        invariant = [
            i
            for i in state
            if body.outputs[i + 1] is body.inputs[i + CONTROL]
            and not node.outputs[i].is_graph_output()
        ]
        if invariant:
            _hoist(node, body, invariant)


def _hoist(node: ir.Node, body: ir.Graph, invariant: list[int]) -> None:
    outer = {i: node.inputs[i + CONTROL] for i in invariant}
    for i in reversed(invariant):
        body.outputs.pop(i + 1)
        body.inputs.pop(i + CONTROL).replace_all_uses_with(outer[i])
    rest = ir.node(
        "Loop",
        [x for i, x in enumerate(node.inputs) if i - CONTROL not in outer],
        {"body": body},
        num_outputs=len(node.outputs) - len(invariant),
    )
    rest.name = node.name
    rest.meta.update(node.meta)
    left = iter(rest.outputs)
    for i, output in enumerate(node.outputs):
        new = outer[i] if i in outer else next(left)
        if i not in outer:
            new.name, new.shape, new.type = output.name, output.shape, output.type
        output.replace_all_uses_with(new, replace_graph_outputs=True)
    node.graph.insert_before(node, rest)
    node.graph.remove(node, safe=True)
