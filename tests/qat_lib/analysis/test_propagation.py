"""Which operators quantization passes, and where it stops."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from onnx_graphs import GraphBuilder

from qat_lib.analysis.flow import Flow
from qat_lib.analysis.propagation import (
    is_rectifier,
    keeps_grid,
    propagate,
)
from qat_lib.analysis.reads import Scale
from qat_lib.onnx_view.graph import Node, OnnxGraph

Build = Callable[[GraphBuilder, str], str]
CORNERS = [0, 0, 1, 1, 0, 0, 1, 1]


def last_node(build: Build, *, opset: int = 17) -> tuple[OnnxGraph, Node]:
    g = GraphBuilder(opset=opset)
    g.output(build(g, g.input()))
    graph = g.graph()
    return graph, graph.nodes[-1]


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda g, x: g.op("Pad", [x, g.const(CORNERS, np.int64)]), True),
        (lambda g, x: g.op("Pad", [x, g.const(CORNERS, np.int64), g.const(0.0)]), True),
        (lambda g, x: g.op("Pad", [x, g.const(CORNERS, np.int64), g.const(0.5)]), False),
        (lambda g, x: g.op("Pad", [x, g.const(CORNERS, np.int64), g.const(-0.5)]), False),
        (lambda g, x: g.op("Pad", [x, g.const(CORNERS, np.int64), g.input("value", ())]), False),
        (lambda g, x: g.op("Pad", [x, g.const(CORNERS, np.int64)], mode="constant"), True),
        (lambda g, x: g.op("Pad", [x, g.const(CORNERS, np.int64)], mode="edge"), False),
        (lambda g, x: g.op("Resize", [x, "", g.const([1, 1, 2, 2])]), True),
        (lambda g, x: g.op("Resize", [x, "", g.const([1, 1, 2, 2])], mode="nearest"), True),
        (lambda g, x: g.op("Resize", [x, "", g.const([1, 1, 2, 2])], mode="linear"), False),
        (lambda g, x: g.op("Transpose", [x]), True),
        (lambda g, x: g.op("Relu", [x]), False),
    ],
)
def test_is_mover(build: Build, expected: bool) -> None:
    graph, node = last_node(build)
    assert graph.moves_values(node) is expected


@pytest.mark.parametrize(("value", "expected"), [(None, True), (0.0, True), (1.0, False)])
def test_is_mover_reads_pad_of_old_opset(value: float | None, expected: bool) -> None:
    attributes = {} if value is None else {"value": value}
    graph, node = last_node(lambda g, x: g.op("Pad", [x], pads=CORNERS, **attributes), opset=10)
    assert graph.moves_values(node) is expected


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda g, x: g.op("Relu", [x]), True),
        (lambda g, x: g.op("LeakyRelu", [x]), False),
        (lambda g, x: g.op("Clip", [x]), False),
        (lambda g, x: g.op("Clip", [x, g.const(0.0)]), True),
        (lambda g, x: g.op("Clip", [x, g.const(0.0), g.const(6.0)]), True),
        (lambda g, x: g.op("Clip", [x, g.const(-1.0), g.const(0.0)]), False),
        (lambda g, x: g.op("Clip", [x, g.const(1.0)]), False),
        (lambda g, x: g.op("Clip", [x, "", g.const(6.0)]), False),
        (lambda g, x: g.op("Clip", [x, g.input("low", ())]), False),
    ],
)
def test_is_rectifier(build: Build, expected: bool) -> None:
    assert is_rectifier(*last_node(build)) is expected


@pytest.mark.parametrize(("low", "expected"), [(0.0, True), (-1.0, False), (None, False)])
def test_is_rectifier_reads_clip_of_old_opset(low: float | None, expected: bool) -> None:
    attributes = {} if low is None else {"min": low}
    found = last_node(lambda g, x: g.op("Clip", [x], max=6.0, **attributes), opset=10)
    assert is_rectifier(*found) is expected


def scale_of(value: float, count: int = 1) -> Scale:
    return Scale(key=(np.float32(value).tobytes(), None, "int8"), largest=value, count=count)


@pytest.mark.parametrize(
    ("high", "scale", "expected"),
    [
        (6.0, 0.1, True),
        (6.0, 0.11, False),
        (6.0, 6 / 126.5, False),
        (6.0, 6 / 127, True),
        (6.0, 6 / 127.5, True),  # beyond the largest integer
        (6.0, 0.01, True),
        (0.5, 1.0, False),
        (1.0, 1.0, True),
        (1.0 + 1e-5, 1.0, False),
        (1.0 + 1e-7, 1.0, True),  # a bound that was rounded to float32
    ],
)
def test_keeps_grid(high: float, scale: float, expected: bool) -> None:
    written = last_node(lambda g, x: g.op("Clip", [x, g.const(0.0), g.const(high, np.float64)]))
    assert keeps_grid(*written, scale_of(scale)) is expected


def test_keeps_grid_without_a_constant_bound() -> None:
    scale = scale_of(0.11)
    assert keeps_grid(*last_node(lambda g, x: g.op("Relu", [x])), scale)
    assert keeps_grid(*last_node(lambda g, x: g.op("Clip", [x, g.const(0.0)])), scale)
    assert not keeps_grid(
        *last_node(lambda g, x: g.op("Clip", [x, g.const(0.0), g.input("high", ())])), scale
    )
    old = last_node(lambda g, x: g.op("Clip", [x], min=0.0, max=6.0), opset=10)
    assert not keeps_grid(*old, scale)
    assert keeps_grid(*old, scale_of(0.1))


def test_keeps_grid_of_a_clip_without_a_lower_bound() -> None:
    found = last_node(lambda g, x: g.op("Clip", [x, "", g.const(6.0)]))
    assert keeps_grid(*found, scale_of(0.1))
    assert not keeps_grid(*found, scale_of(0.11))


def test_propagate_is_done_after_once() -> None:
    """Down and up over branches that join; a second time changes nothing."""
    g = GraphBuilder()
    x = g.op("Tanh", [g.input()])
    left = g.op("MaxPool", [g.qdq(g.op("Relu", [g.op("Transpose", [x])]))], kernel_shape=[1, 1])
    right = g.op("Transpose", [g.op("Flatten", [x])])
    joined = g.op("Concat", [g.op("Flatten", [left]), right], axis=1)
    g.output(g.qdq(joined), g.op("Concat", [left, g.qdq(left)], axis=1))
    once = propagate(Flow.of(g.graph()))
    twice = propagate(once)
    assert [read.scale for read in once.reads] == [read.scale for read in twice.reads]
    assert {read.scale is None for read in once.reads} == {True, False}


def seen(build: Callable[[GraphBuilder, str], list[str]]) -> list[float | None]:
    """Return the scales of the outputs and the first operator's input.

    They are those in which the reads see them.
    """
    g = GraphBuilder()
    x = g.input()
    g.output(*build(g, x))
    flow = propagate(Flow.of(g.graph()))
    reads = [read for read in flow.reads if read.node is None] + list(flow.readers(x))
    return [None if read.scale is None else round(read.scale.largest, 6) for read in reads]


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda g, x: [g.op("MaxPool", [g.qdq(x)], kernel_shape=[2, 2])], [0.1, 0.1]),
        (lambda g, x: [g.qdq(g.op("MaxPool", [x], kernel_shape=[2, 2]))], [0.1, 0.1]),
        (lambda g, x: [g.op("AveragePool", [g.qdq(x)], kernel_shape=[2, 2])], [None, 0.1]),
        (lambda g, x: [g.qdq(g.op("AveragePool", [x], kernel_shape=[2, 2]))], [0.1, None]),
        (lambda g, x: [g.op("Relu", [g.qdq(x)])], [0.1, 0.1]),
        (lambda g, x: [g.qdq(g.op("Relu", [x]))], [0.1, 0.1]),  # nothing in front takes the Relu in
        (lambda g, x: [g.op("Clip", [g.qdq(x, 0.11), g.const(0.0), g.const(6.0)])], [None, 0.11]),
        (lambda g, x: [g.qdq(g.op("Clip", [x, g.const(0.0), g.const(6.0)]), 0.11)], [0.11, None]),
        (lambda g, x: [g.op("Transpose", [g.dq(g.q(x, [0.1] * 16), [0.1] * 16)])], [None, 0.1]),
        (lambda g, x: [g.dq(g.q(g.op("Transpose", [x]), [0.1] * 8), [0.1] * 8)], [0.1, None]),
        (lambda g, x: [g.op("Transpose", [g.dq(g.q(x, [0.1] * 2), [0.1] * 2)])], [None, 0.1]),
        (lambda g, x: [g.dq(g.q(g.op("Transpose", [x]), [0.1] * 2), [0.1] * 2)], [0.1, None]),
        (
            lambda g, x: [g.qdq(g.op("Transpose", [x])), g.op("Flatten", [g.input("z")])],
            [0.1, None, 0.1],
        ),
        (
            lambda g, x: [
                g.op("Flatten", [g.op("Tanh", [g.input("z")])]),
                g.op("Transpose", [g.qdq(x)]),
            ],
            [None, 0.1, 0.1],
        ),
        (lambda g, x: [g.qdq(g.op("Transpose", [g.qdq(x)]), 0.2)], [0.2, 0.1]),
        (lambda g, x: [g.qdq(y := g.op("Transpose", [x])), y], [0.1, None, None]),
        (lambda g, x: [g.qdq(y := g.op("Transpose", [x])), g.qdq(y, 0.2)], [0.1, 0.2, None]),
        (
            lambda g, x: [
                g.op("Slice", [g.qdq(x, 0.11), *(g.const([n], np.int64) for n in (0, 1))])
            ],
            [0.11, 0.11],
        ),
        (lambda g, x: [g.op("Concat", [g.qdq(x), g.qdq(x)], axis=1)], [0.1, 0.1, 0.1]),
        (lambda g, x: [g.op("Concat", [g.qdq(x), x], axis=1)], [None, 0.1, None]),
        (lambda g, x: [g.op("Concat", [g.qdq(x), g.qdq(x, 0.2)], axis=1)], [None, 0.1, 0.2]),
        (lambda g, x: [g.qdq(g.op("Concat", [x, x], axis=1))], [0.1, 0.1, 0.1]),
        (lambda g, x: [g.qdq(g.op("Concat", [g.qdq(x), x], axis=1), 0.2)], [0.2, 0.1, None]),
        (lambda g, x: [g.op("Flatten", [g.op("Transpose", [g.qdq(x)])])], [0.1, 0.1]),
        (lambda g, x: [g.qdq(g.op("Flatten", [g.op("Transpose", [x])]))], [0.1, 0.1]),
    ],
)
def test_propagate(
    build: Callable[[GraphBuilder, str], list[str]], expected: list[float | None]
) -> None:
    assert seen(build) == expected


@pytest.mark.parametrize(
    ("front", "expected"),
    [("MaxPool", 0.1), ("Concat", 0.1), ("Tanh", None), ("AveragePool", None)],
)
def test_propagate_leaves_a_q_behind_a_fused_relu(front: str, expected: float | None) -> None:
    options = (
        {"kernel_shape": [2, 2]}
        if front.endswith("Pool")
        else {"axis": 1}
        if front == "Concat"
        else {}
    )
    g = GraphBuilder()
    x = g.op(front, [g.input()] * (1 + (front == "Concat")), **options)
    g.output(g.qdq(g.op("Relu", [x])))
    (read,) = propagate(Flow.of(g.graph())).readers(x)
    assert (None if read.scale is None else round(read.scale.largest, 6)) == expected
