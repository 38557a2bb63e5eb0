"""Shared ranges of the inputs of a quantized Concatenate.

A Concatenate runs in INT8 only if its inputs have one range.
"""

from __future__ import annotations

from qat_lib.core.plan import Consumer
from qat_lib.graph.call_graph import GraphCall
from qat_lib.planner.wants import Wants


def tied_groups(wants: Wants) -> dict[str, str]:
    """Return the tied group of each tied tensor, named after the group's first tensor."""
    order = wants.graph.order
    parent: dict[str, str] = {}

    # Union-find: tensors of several Concatenates end up in one group.
    def find(tensor: str) -> str:
        while parent.get(tensor, tensor) != tensor:
            tensor = parent[tensor]
        return tensor

    for call in wants.graph.calls:
        traits = call.traits
        if traits.kind != "Concatenate" or traits.support is None or traits.is_wrapped:
            continue
        members = _members(wants, call)
        roots = sorted({find(member) for member in members}, key=order.__getitem__)
        for member in roots:
            parent[member] = roots[0]
        for member in members:
            parent.setdefault(member, roots[0])
    return {tensor: find(tensor) for tensor in parent}


def _members(wants: Wants, call: GraphCall) -> list[str]:
    """Return the tensors that a Concatenate ties; empty unless all of its inputs are quantized."""
    members = []
    any_wanted = False
    for index, tensor in enumerate(call.inputs):
        consumers = [consumer for consumer, _ in wants.readers.get(tensor, ())]
        wanted = Consumer(layer=call.name, input=index) in consumers
        # The input may have a quantizer already, which counts as quantized.
        quantizer = wants.graph.quantizer_on(tensor)
        if not wanted and quantizer is None:
            return []
        any_wanted = any_wanted or wanted
        members.append(wants.root(tensor if quantizer is None else quantizer.inputs[0]))
    # All inputs have existing quantizers, which keep their ranges.
    if not any_wanted:
        return []
    return members + [tensor for tensor in call.outputs if tensor in wants.readers]
