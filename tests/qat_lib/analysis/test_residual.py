"""Which kernel fuses an Add of activations: rule and precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx_graphs import GraphBuilder

from qat_lib.analysis.chains import grow_chains
from qat_lib.analysis.flow import Flow
from qat_lib.analysis.propagation import propagate
from qat_lib.analysis.residual import PlacedAdd, alone_end, place_adds
from qat_lib.analysis.weighted import find_weighted

Build = Callable[[GraphBuilder], str]
SHAPE = (1, 16, 8, 8)


def place(*builds: Build) -> list[PlacedAdd]:
    """Return the verdicts on the Adds of a graph."""
    g = GraphBuilder()
    g.output(*(build(g) for build in builds))
    flow = propagate(Flow.of(g.graph()))
    chains, placed = place_adds(flow, grow_chains(flow, find_weighted(flow)))
    for verdict in placed:
        if verdict.chain is not None:
            assert chains[verdict.chain.op.node.index] is verdict.chain
    return placed


def verdict(*builds: Build) -> str:
    """Return the only verdict: rule, fused or following kernel, and precision.

    The following kernel is the one behind a Q.
    """
    (placed,) = place(*builds)
    into = (
        "" if placed.chain is None else f" in {' '.join(node.name for node in placed.chain.nodes)}"
    )
    behind = "" if placed.branch is None else f" behind {placed.branch.op.node.name}"
    return f"{placed.rule}{into}{behind} {'int8' if placed.int8 else 'float'}"


def conv(g: GraphBuilder, name: str, x: str = "", **options: Any) -> str:
    """A convolution node ``name``, of its own input or ``x``."""
    weight = g.weight((16, 16, 3, 3), name=name, quantized=options.pop("quantized", True))
    read = g.qdq(x or g.input(f"{name} in", SHAPE))
    return g.op("Conv", [read, weight], name, pads=[1] * 4, **options)


def tanh(g: GraphBuilder, shape: Any = SHAPE) -> str:
    return g.op("Tanh", [g.input(g.fresh("t"), shape)])


def add(g: GraphBuilder, a: str, b: str) -> str:
    return g.op("Add", [a, b], "add")


def relu(g: GraphBuilder, x: str, op: str = "Relu") -> str:
    bounds = [g.const(0.0), g.const(12.7)] if op == "Clip" else []
    return g.op(op, [x, *bounds], "relu")


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda g: g.qdq(add(g, conv(g, "c"), g.qdq(tanh(g)))), "F1 in c add int8"),
        (lambda g: g.qdq(add(g, g.qdq(tanh(g)), conv(g, "c"))), "F1 in c add int8"),
        (lambda g: g.qdq(relu(g, add(g, conv(g, "c"), g.qdq(tanh(g))))), "F1 in c add relu int8"),
        (
            lambda g: g.qdq(add(g, conv(g, "c", quantized=False), g.qdq(tanh(g)))),
            "F1 in c add float",
        ),
        (lambda g: g.qdq(add(g, conv(g, "c"), tanh(g))), "F2 in c add float"),
        (lambda g: add(g, conv(g, "c"), tanh(g)), "F2 in c add float"),
        (lambda g: add(g, conv(g, "c"), g.qdq(tanh(g))), "F3 in c add float"),
        (lambda g: g.qdq(add(g, g.qdq(conv(g, "c")), g.qdq(tanh(g)))), "F4 behind c int8"),
        (lambda g: g.qdq(relu(g, add(g, g.qdq(conv(g, "c")), g.qdq(tanh(g))))), "F4 behind c int8"),
        (lambda g: add(g, g.qdq(conv(g, "c")), g.qdq(tanh(g))), "F4 behind c float"),
        (lambda g: g.qdq(add(g, g.qdq(conv(g, "c")), tanh(g))), "F5 float"),
        (lambda g: g.qdq(add(g, tanh(g), tanh(g))), "F5 float"),
        (lambda g: g.qdq(add(g, g.qdq(tanh(g)), tanh(g))), "F5 float"),
        (lambda g: g.qdq(add(g, g.qdq(tanh(g)), g.qdq(tanh(g)))), "F5 int8"),
        (lambda g: add(g, g.qdq(tanh(g)), g.qdq(tanh(g))), "F5 float"),
        (lambda g: g.qdq(add(g, g.qdq(tanh(g)), g.qdq(tanh(g, (1, 16, 1, 1))))), "F6 int8"),
        (lambda g: g.qdq(add(g, g.qdq(tanh(g)), tanh(g, (1, 16, 1, 1)))), "F6 float"),
        (lambda g: add(g, g.qdq(tanh(g)), g.qdq(tanh(g, (1, 16, 1, 1)))), "F6 float"),
        (lambda g: g.qdq(add(g, conv(g, "c"), g.qdq(tanh(g, (16, 1, 1))))), "F6 float"),
    ],
)
def test_place_adds(build: Build, expected: str) -> None:
    assert verdict(build) == expected


def per_channel(g: GraphBuilder, x: str) -> str:
    return g.dq(g.q(x, [0.1] * 16, axis=1), [0.1] * 16, axis=1)


def test_add_with_per_channel_output_writes_floating_point() -> None:
    assert (
        verdict(lambda g: per_channel(g, add(g, conv(g, "c"), g.qdq(tanh(g)))))
        == "F3 in c add float"
    )
    assert verdict(lambda g: per_channel(g, add(g, g.qdq(tanh(g)), g.qdq(tanh(g))))) == "F5 float"


def test_a_layer_that_something_else_reads_takes_no_add() -> None:
    def shared(g: GraphBuilder) -> str:
        y = conv(g, "c")
        g.output(g.op("Exp", [y]))
        return g.qdq(add(g, y, g.qdq(tanh(g))))

    def shared_behind_q(g: GraphBuilder) -> str:
        y = conv(g, "c")
        g.output(g.op("Exp", [y]))
        return g.qdq(add(g, g.qdq(y), g.qdq(tanh(g))))

    assert verdict(shared) == "F5 float"
    assert verdict(shared_behind_q) == "F5 int8"


@pytest.mark.parametrize("shallow_first", [True, False])
def test_layer_with_fewer_operators_before_takes_add(shallow_first: bool) -> None:
    def build(g: GraphBuilder) -> str:
        operands = [conv(g, "shallow"), conv(g, "deep", g.op("Exp", [tanh(g)]))]
        return add(g, *(operands if shallow_first else operands[::-1]))

    assert verdict(build) == "F2 in shallow add float"


@pytest.mark.parametrize("shallow_first", [True, False])
def test_depth_is_that_of_the_longest_way(shallow_first: bool) -> None:
    """A sum of short and long paths counts the long one.

    The layer that reads the sum lies as deep.
    """

    def build(g: GraphBuilder) -> str:
        long_way = g.op("Exp", [g.op("Exp", [g.op("Exp", [tanh(g)])])])
        deep = conv(g, "deep", g.op("Mul", [long_way, tanh(g)]))
        operands = [conv(g, "shallow", g.op("Exp", [tanh(g)])), deep]
        return add(g, *(operands if shallow_first else operands[::-1]))

    assert verdict(build) == "F2 in shallow add float"


def test_second_operand_takes_add_at_equal_depth() -> None:
    assert verdict(lambda g: add(g, conv(g, "a"), conv(g, "b"))) == "F2 in b add float"
    assert verdict(lambda g: add(g, *[conv(g, name) for name in "ab"][::-1])) == "F2 in a add float"


@pytest.mark.parametrize("deep_first", [True, False])
def test_v17_is_about_the_deeper_of_two_layers(deep_first: bool) -> None:
    def build(g: GraphBuilder) -> str:
        operands = [g.qdq(conv(g, "deep", g.op("Exp", [tanh(g)]))), g.qdq(conv(g, "shallow"))]
        return add(g, *(operands if deep_first else operands[::-1]))

    assert verdict(build) == "F4 behind deep float"


def test_adds_of_constants_and_integers_are_no_residuals() -> None:
    def bias(g: GraphBuilder) -> str:
        return g.op("Add", [tanh(g), g.const(np.ones((16, 1, 1)))], "bias")

    def indices(dtype: Any) -> Build:
        def build(g: GraphBuilder) -> str:
            return g.op("Add", [g.input(g.fresh("i"), (1, 4), dtype) for _ in range(2)], "indices")

        return build

    kinds = (np.int16, np.int32, np.int64, np.uint16, np.uint32, np.uint64)
    placed = place(bias, *map(indices, kinds), lambda g: add(g, tanh(g), tanh(g)))
    assert [each.node.name for each in placed] == ["add"]


def test_second_add_does_not_join_same_kernel() -> None:
    def build(g: GraphBuilder) -> str:
        first = g.op("Add", [conv(g, "c"), g.qdq(tanh(g))], "first")
        return g.qdq(g.op("Add", [first, g.qdq(tanh(g))], "second"))

    assert [(each.node.name, each.rule) for each in place(build)] == [
        ("first", "F3"),
        ("second", "F5"),
    ]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ((1, 16, 8, 8), (1, 16, 8, 8), False),
        ((1, 16, 8, 8), (4, 16, 8, 8), False),
        ((1, 16, 8, 8), (1, 16, 8, 1), True),
        ((1, 16, 8, 8), (1, 1, 8, 8), True),
        ((1, 16, 8, 8), (16, 8, 8), True),
        ((1, 16, 8, 8), (1, "channels", 8, 8), False),
        ((1, None, 8, 8), (1, 16, 8, 8), False),
        ((1, None, 8, 8), (1, 16, 8, 1), True),
        ((1, 16, 8, 8), None, False),
        (None, (1, 16, 8, 8), False),
    ],
)
def test_operands_broadcast_where_more_than_the_batch_differs(
    first: Any, second: Any, expected: bool
) -> None:
    g = GraphBuilder()
    g.output(
        add(
            g,
            *(
                g.op("Tanh", [g.input(name, shape)])
                for name, shape in zip("ab", (first, second), strict=True)
            ),
        )
    )
    flow = Flow.of(g.graph())
    _, (placed,) = place_adds(flow, {})
    assert placed.rule == ("F6" if expected else "F5")


@pytest.mark.parametrize(
    ("behind", "ends_in"),
    [
        (lambda g, y: [relu(g, y)], "Relu"),
        (lambda g, y: [relu(g, y, "Clip")], "Clip"),
        (lambda g, y: [g.op("Exp", [y])], "Add"),
        (lambda g, y: [relu(g, g.qdq(y))], "Add"),
        (lambda g, y: [relu(g, y), y], "Add"),
        (lambda g, y: [y], "Add"),
    ],
)
def test_alone_end(behind: Callable[[GraphBuilder, str], list[str]], ends_in: str) -> None:
    g = GraphBuilder()
    g.output(*behind(g, add(g, tanh(g), tanh(g))))
    flow = Flow.of(g.graph())
    node = next(node for node in flow.operators if node.op == "Add")
    producer = flow.graph.producer(alone_end(flow, node))
    assert producer is not None
    assert producer.op == ends_in
