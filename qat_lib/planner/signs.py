"""Tensors that are non-negative by their layers, and therefore suit unsigned INT8."""

from __future__ import annotations

from qat_lib.graph.call_graph import CallGraph, GraphCall
from qat_lib.graph.roles import activation_functions

NON_NEGATIVE = activation_functions("non-negative")


def non_negative_tensors(graph: CallGraph) -> frozenset[str]:
    """Return the tensors that are non-negative by their layers, for any weights."""
    found: set[str] = set()
    for call in graph.calls:
        if _is_non_negative(call, [tensor in found for tensor in call.inputs]):
            found.update(call.outputs)
    return frozenset(found)


def _is_non_negative(call: GraphCall, inputs: list[bool]) -> bool:
    """Return whether a call's outputs are non-negative.

    Args:
        call: the call.
        inputs: whether each input is non-negative.
    """
    traits = call.traits
    if traits.is_input:
        return False
    if "non-negative" in traits.roles or traits.own_activation in NON_NEGATIVE:
        return True
    if traits.is_quantizer:
        return traits.quantizer.unsigned or inputs[0]
    # One non-negative operand bounds the maximum from below.
    if traits.kind == "Maximum" and any(inputs):
        return True
    return bool(inputs) and all(inputs) and _keeps_sign(call)


def _keeps_sign(call: GraphCall) -> bool:
    """Return whether non-negative inputs give non-negative outputs."""
    roles = call.traits.roles
    # With one tensor, the other operand is a constant, of any sign.
    if "merge" in roles:
        return "sign preserving" in roles and len(call.inputs) > 1
    return "sign preserving" in roles or "range preserving" in roles
