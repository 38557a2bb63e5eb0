"""Where an attention begins and ends, and what is quantized in between."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from onnx_graphs import GraphBuilder

from qat_lib.analysis.engine import PredictedEngine, predict_engine
from qat_lib.analysis.rules.attention import between_products, check_attention
from qat_lib.analysis.rules.mixed import check_mixed

Build = Callable[[GraphBuilder, str], str]


def attention(
    scores: Build, *, weights: Build = lambda g, x: x, product: str = "MatMul", opset: int = 17
) -> PredictedEngine:
    """An attention with given score path (``scores``) and weight path (``weights``).

    The first leads to the Softmax, the second away from it.
    """
    g = GraphBuilder(opset=opset)
    q, k, v = (g.qdq(g.input(name, (4, 32, 32))) for name in "qkv")
    normalized = g.op("Softmax", [scores(g, g.op("MatMul", [q, k], "scores"))], "attention/Softmax")
    g.output(g.op(product, [weights(g, normalized), v], "values"))
    return predict_engine(g.graph())


def mask(g: GraphBuilder, x: str, *, quantized: bool = False) -> str:
    given = g.op(
        "Reshape", [g.input("mask", (4, 1024)), g.const([4, 32, 32], np.int64)], "bias/Reshape"
    )
    return g.op("Add", [x, g.qdq(given) if quantized else given], "mask")


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        (lambda g, x: x, []),
        (lambda g, x: g.qdq(x), ["attention/Softmax"]),
        (mask, []),
        (lambda g, x: mask(g, x, quantized=True), ["mask"]),
        (lambda g, x: mask(g, g.qdq(x)), ["mask"]),
        (lambda g, x: g.op("Mul", [mask(g, g.qdq(x)), g.const(0.5)], "scale"), ["mask"]),
    ],
)
def test_v23(scores: Build, expected: list[str]) -> None:
    assert [each.node for each in check_attention(attention(scores))] == expected


@pytest.mark.parametrize("op", ["Add", "Tanh"])
def test_v23_ignores_softmax_that_weighs_nothing(op: str) -> None:
    g = GraphBuilder()
    y = g.op("Softmax", [g.qdq(g.op("Tanh", [g.input(shape=(4, 32))]))], "first")
    g.output(g.op(op, [y] * (1 + (op == "Add"))))
    assert list(check_attention(predict_engine(g.graph()))) == []
    scores, _, values = (g.qdq(g.input(name, (4, 32, 32))) for name in "abc")
    g.output(g.op("MatMul", [g.op("Softmax", [scores], "second"), values]))
    assert [each.node for each in check_attention(predict_engine(g.graph()))] == ["second"]


@pytest.mark.parametrize(("length", "found"), [(7, True), (8, False)])
def test_v23_follows_the_weights_over_a_few_moves(length: int, found: bool) -> None:
    def moved(g: GraphBuilder, x: str) -> str:
        for _ in range(length):
            x = g.op("Transpose", [x], perm=[0, 2, 1])
        return x

    assert bool(list(check_attention(attention(lambda g, x: g.qdq(x), weights=moved)))) is found


def test_between_products_holds_the_way_and_not_the_mask() -> None:
    found = attention(lambda g, x: g.op("Mul", [mask(g, x), g.const(0.5)], "scale"))
    names = {node.name for node in found.graph.nodes if node.index in between_products(found)}
    assert names == {"mask", "scale", "attention/Softmax"}


def test_between_products_continues_behind_other_softmax() -> None:
    g = GraphBuilder()
    g.output(
        g.op(
            "Softmax",
            [g.op("Mul", [g.input("x", (4, 32)), g.input("y", (4, 32))], "other")],
            "first",
        )
    )
    q, k, v = (g.input(name, (4, 32, 32)) for name in "qkv")
    way = g.op(
        "Softmax",
        [g.op("Div", [g.op("MatMul", [q, k], "scores"), g.const(2.0)], "scale")],
        "second",
    )
    g.output(g.op("MatMul", [way, v], "values"))
    found = predict_engine(g.graph())
    assert {n.name for n in found.graph.nodes if n.index in between_products(found)} == {
        "scale",
        "second",
    }


def test_v18_leaves_the_way_to_a_softmax_out() -> None:
    assert list(check_mixed(attention(lambda g, x: mask(g, x, quantized=True)))) == []


def test_v23_names_the_nearest_quantizer() -> None:
    """The mask's, two operators above the Softmax, precedes the scores'.

    That one is three operators above.
    """

    def build(g: GraphBuilder, x: str) -> str:
        given = g.op("Mul", [g.qdq(g.input("mask", (4, 32, 32))), g.const(2.0)], "scaled")
        far = g.op("Mul", [g.op("Mul", [g.qdq(x), g.const(0.5)], "far"), g.const(0.5)], "near")
        return g.op("Add", [given, far], "mask")

    assert [each.node for each in check_attention(attention(build))] == ["scaled"]


@pytest.mark.parametrize(("op", "weighs"), [("Tanh", True), ("Exp", True), ("Softmax", False)])
def test_between_products_is_about_a_softmax_that_weighs(op: str, weighs: bool) -> None:
    g = GraphBuilder()
    q, k, v = (g.input(name, (4, 32, 32)) for name in "qkv")
    y = g.op(op, [mask(g, g.op("MatMul", [q, k]))])
    g.output(g.op("MatMul", [y, v]) if weighs else y)
    assert between_products(predict_engine(g.graph())) == frozenset()


def test_v18_goes_on_behind_an_attention() -> None:
    g = GraphBuilder()
    q, k, v = (g.qdq(g.input(name, (4, 32, 32))) for name in "qkv")
    weights = g.op("Softmax", [mask(g, g.op("MatMul", [q, k]), quantized=True)])
    g.output(
        g.op("Mul", [g.qdq(g.op("MatMul", [weights, v])), g.input("gate", (4, 32, 32))], "gate/Mul")
    )
    assert [(each.code, each.node) for each in check_mixed(predict_engine(g.graph()))] == [
        ("V18", "gate/Mul")
    ]
