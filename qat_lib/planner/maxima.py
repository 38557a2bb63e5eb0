"""Tensors whose greatest values count, since a maximum over many values reads them."""

from __future__ import annotations

from collections.abc import Iterable

from qat_lib.graph.layer_graph import LayerGraph
from qat_lib.graph.layer_traits import is_wide_maximum, preserves_range
from qat_lib.plan import Consumer


def maximum_behind(graph: LayerGraph, consumers: Iterable[Consumer]) -> str | None:
    """Return the call that takes a maximum over many values of a quantized tensor, or None.

    A percentile leaves few of a tensor's values out, but of the maxima over many of them, most.

    Args:
        graph: the model.
        consumers: who reads the quantized tensor. What only passes its values on is looked through.
    """
    open_calls = [graph.by_name[consumer.layer] for consumer in consumers]
    while open_calls:
        call = open_calls.pop()
        if is_wide_maximum(call.core):
            return call.name
        if preserves_range(call.core):
            open_calls += [reader for reader, _ in graph.consumers(call.outputs[0])]
    return None
