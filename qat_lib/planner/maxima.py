"""Tensors read by a maximum over many values, where the greatest values matter."""

from __future__ import annotations

from collections.abc import Iterable

from qat_lib.core.plan import Consumer
from qat_lib.graph.call_graph import CallGraph


def maximum_behind(graph: CallGraph, consumers: Iterable[Consumer]) -> str | None:
    """Return the wide maximum that reads a quantized tensor, or None.

    A percentile clips few of a tensor's values, but most of the maxima over many values.

    Args:
        graph: the model.
        consumers: readers of the quantized tensor; range-preserving readers are followed.
    """
    open_calls = [graph.by_name[consumer.layer] for consumer in consumers]
    while open_calls:
        call = open_calls.pop()
        if "wide maximum" in call.traits.roles:
            return call.name
        if call.traits.preserves_range:
            open_calls += [reader for reader, _ in graph.consumers(call.outputs[0])]
    return None
