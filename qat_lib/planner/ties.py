"""Tensors that meet in a quantized Concatenate share one range, so that it stays in INT8."""

from __future__ import annotations

from keras import layers

from qat_lib.existing_quantizers import quantizer_on
from qat_lib.planner.wants import Wants


def tied_groups(wants: Wants) -> dict[str, str]:
    """Return the tied group of each tensor in one, named after its first tensor."""
    graph = wants.graph
    order = {tensor: i for i, call in enumerate(graph.calls) for tensor in call.outputs}
    parent: dict[str, str] = {}

    def find(tensor: str) -> str:
        while parent.get(tensor, tensor) != tensor:
            tensor = parent[tensor]
        return tensor

    for call in graph.calls:
        if not isinstance(call.operation, layers.Concatenate):
            continue
        readers = {
            (c.layer, c.input) for tensor in call.inputs for c, _ in wants.readers.get(tensor, ())
        }
        wanted = [(call.name, i) in readers for i in range(len(call.inputs))]
        there = [quantizer_on(graph, tensor) for tensor in call.inputs]
        if not any(wanted) or any(not w and q is None for w, q in zip(wanted, there, strict=True)):
            continue
        quantized = [
            q.inputs[0] if q is not None else t for t, q in zip(call.inputs, there, strict=True)
        ]
        members = [wants.root(tensor) for tensor in quantized]
        members += [t for t in call.outputs if t in wants.readers]
        roots = sorted({find(member) for member in members}, key=lambda t: order[t])
        for member in roots:
            parent[member] = roots[0]
        for member in members:
            parent.setdefault(member, roots[0])
    return {tensor: find(tensor) for tensor in parent}
