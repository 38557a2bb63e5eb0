"""Move Q up and DQ down over operators that commute with them.

An operator commutes if Q(Op(x)) = Op(Q(x)): it moves or selects numbers without computing new
ones. NVIDIA's developer guide documents MaxPool; padding, transposes and reshapes were observed in
engines; the others are inferred.
"""

from __future__ import annotations

import numpy as np

from qat_lib.analysis.flow import Flow
from qat_lib.analysis.reads import Read, Scale
from qat_lib.graph.roles import onnx_operators
from qat_lib.onnx_view.graph import Node, OnnxGraph

_LARGEST_INTEGER = 127
_RECTIFIERS = onnx_operators("rectifier")


def is_rectifier(graph: OnnxGraph, node: Node) -> bool:
    """Return whether ``node`` is a Relu or a Clip from zero."""
    if node.op == "Relu":
        return True
    if node.op != "Clip":
        return False
    low = graph.value(node.input(1)) if node.input(1) else node.attributes.get("min")
    return low is not None and bool(np.all(np.asarray(low) == 0))


def keeps_grid(graph: OnnxGraph, node: Node, scale: Scale) -> bool:
    """Return whether an operator maps multiples of ``scale`` to multiples of ``scale``.

    A Clip does if its upper bound is a multiple or exceeds the largest integer: Clip(0, 6) keeps
    the grid of 0.1, but not the grid of 0.11.
    """
    if node.op != "Clip":
        return True
    bound = graph.value(node.input(2)) if node.input(2) else node.attributes.get("max")
    if bound is None:
        return not node.input(2)  # no bound, or a computed bound of unknown value
    steps = np.asarray(bound, np.float64).ravel() / scale.largest
    on_grid = np.isclose(steps, np.round(steps), rtol=1e-6, atol=0)
    return bool(np.all(on_grid | (steps >= _LARGEST_INTEGER)))


def propagate(flow: Flow) -> Flow:
    """Return ``flow`` with Q and DQ moved to a fixed point.

    One pass in each direction suffices. A DQ passes an operator with a quantized input, a Q an
    operator with quantized outputs only, so neither enables further moves of the other.
    """
    lowered = flow.with_scales(_move_down(flow))
    return lowered.with_scales(_move_up(lowered))


def _data(flow: Flow, node: Node) -> tuple[Read, ...]:
    """Return the inputs of ``node`` that its quantizer can move to, if any."""
    if node.op == "Concat":
        return flow.data_inputs(node)
    if flow.graph.moves_values(node) or is_rectifier(flow.graph, node):
        first = flow.input(node, 0)
        return () if first is None else (first,)
    return ()


def _move_down(flow: Flow) -> dict[Read, Scale]:
    moved: dict[Read, Scale] = {}

    def now(read: Read) -> Scale | None:
        return moved.get(read, read.scale)

    for node in flow.operators:
        scales = {now(read) for read in _data(flow, node)}
        scale = scales.pop() if len(scales) == 1 else None
        # Per-channel scales do not pass: the operator may move their axis.
        if scale is None or scale.count > 1 or not keeps_grid(flow.graph, node, scale):
            continue
        for read in flow.output_reads(node):
            if now(read) is None:
                moved[read] = scale
    return moved


def _move_up(flow: Flow) -> dict[Read, Scale]:
    raised: dict[Read, Scale] = {}

    def now(read: Read) -> Scale | None:
        return raised.get(read, read.scale)

    # From the outputs up, so that a Q can pass several operators in a row.
    for node in reversed(flow.operators):
        data = _data(flow, node)
        wanted = {now(read) for read in flow.output_reads(node)}
        # All readers must agree on a scale, and no input may have one of its own.
        if not data or len(wanted) != 1 or any(now(read) is not None for read in data):
            continue
        scale = wanted.pop()
        if (
            scale is None
            or scale.count > 1
            or not _may_pass(flow, node)
            or not keeps_grid(flow.graph, node, scale)
        ):
            continue
        raised.update(dict.fromkeys(data, scale))
    return raised


def _may_pass(flow: Flow, node: Node) -> bool:
    """Return whether a Q may pass ``node``: not if it is a Relu fused into its producer."""
    if not is_rectifier(flow.graph, node):
        return True
    source = flow.graph.producer(flow.inputs(node)[0].value)
    return source is None or source.op == "Concat" or flow.graph.moves_values(source)
