"""Findings on unweighted operators: pools, Concats, elementwise, always-float ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx_graphs import GraphBuilder, image

from qat_lib.analysis.engine import PredictedEngine, predict_engine
from qat_lib.analysis.rules.mixed import check_mixed

Build = Callable[[GraphBuilder, str], str]


def engine(build: Build, *, opset: int = 17) -> PredictedEngine:
    """Predict the engine of what is built behind a Tanh."""
    g = GraphBuilder(opset=opset)
    g.output(build(g, g.op("Tanh", [g.input()], "tanh/Tanh")))
    return predict_engine(g.graph())


def said(found: Any) -> list[tuple[str, str]]:
    return [(each.code, each.node) for each in found]


def other(g: GraphBuilder, name: str = "z", shape: Any = (1, 16, 8, 8)) -> str:
    """What a second Tanh writes."""
    return g.op("Tanh", [g.input(name, shape)], f"{name}/Tanh")


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda g, x: g.op("GlobalAveragePool", [x], "pool"), []),
        (lambda g, x: g.op("GlobalAveragePool", [g.qdq(x)], "pool"), [("V19", "pool")]),
        (lambda g, x: g.qdq(g.op("GlobalAveragePool", [g.qdq(x)], "pool")), []),
        (lambda g, x: g.qdq(g.op("GlobalAveragePool", [x], "pool")), []),
        (lambda g, x: g.op("GlobalMaxPool", [g.qdq(x)], "pool"), []),
        (
            lambda g, x: g.op("Neg", [g.op("GlobalAveragePool", [g.qdq(x)], "pool")], "neg"),
            [("V19", "pool")],
        ),
    ],
)
def test_v19(build: Build, expected: list[tuple[str, str]]) -> None:
    assert said(check_mixed(engine(build))) == expected


def concat(*scales: float | None, written: float | None) -> Build:
    def build(g: GraphBuilder, x: str) -> str:
        parts = [x, *(other(g, name) for name in "abc"[: len(scales) - 1])]
        read = [
            part if scale is None else g.qdq(part, scale)
            for part, scale in zip(parts, scales, strict=True)
        ]
        y = g.op("Concat", read, "join/Concat", axis=1)
        return (
            y if written is None else g.conv(g.qdq(y, written), 16 * len(scales), 16, name="next")
        )

    return build


@pytest.mark.parametrize(
    ("build", "code", "text"),
    [
        (concat(0.1, 0.1, written=0.1), "", ""),
        (concat(None, None, written=0.1), "", ""),
        (concat(None, None, written=None), "", ""),
        (concat(0.1, 0.1, written=None), "", ""),
        (concat(0.1, 0.1, written=0.2), "V20", "have another scale than its output"),
        (concat(0.1, 0.2, written=0.1), "V20", "have different scales"),
        (concat(0.1, 0.25, written=None), "V20", "have different scales"),
        (concat(0.1, None, written=0.1), "V21", "joins quantized tensors with 'a', not quantized"),
        (
            concat(None, 0.1, None, written=None),
            "V21",
            "joins quantized tensors with 'tanh', 'b', not quantized",
        ),
        (
            concat(0.1, 0.2, None, written=None),
            "V21",
            "joins quantized tensors with 'b', not quantized",
        ),
    ],
)
def test_v20_and_v21(build: Build, code: str, text: str) -> None:
    found = list(check_mixed(engine(build)))
    assert said(found) == ([(code, "join/Concat")] if code else [])
    assert all(text in each.message for each in found)


def test_v20_lists_scales_in_input_order() -> None:
    (found,) = check_mixed(engine(concat(0.5, 0.125, 0.25, 0.125, written=None)))
    assert "have different scales (0.5, 0.125, 0.25)" in found.message


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda g, x: g.op("Mul", [x, other(g)], "mul/Mul"), ""),
        (lambda g, x: g.op("Mul", [g.qdq(x), other(g)], "mul/Mul"), "('z' is not quantized)"),
        (lambda g, x: g.op("Mul", [x, g.qdq(other(g))], "mul/Mul"), "('tanh' is not quantized)"),
        (lambda g, x: g.op("Mul", [g.qdq(x), g.input("in")], "mul/Mul"), "('in' is not quantized)"),
        (
            lambda g, x: g.op("Max", [x, g.qdq(other(g)), g.input("in")], "mul/Mul"),
            "('tanh' and 'in' is not",
        ),
        (
            lambda g, x: g.op("Mul", [g.qdq(x), g.qdq(other(g))], "mul/Mul"),
            "its output is not quantized by one scale",
        ),
        (lambda g, x: g.qdq(g.op("Mul", [g.qdq(x), g.qdq(other(g))], "mul/Mul")), ""),
        (
            lambda g, x: g.qdq(g.op("Mul", [g.qdq(x), other(g)], "mul/Mul")),
            "('z' is not quantized)",
        ),
        (lambda g, x: g.op("Neg", [g.qdq(x)], "mul/Mul"), ""),
        (
            lambda g, x: g.op("Mul", [g.qdq(x), g.const(2.0)], "mul/Mul"),
            "its output is not quantized by one scale",
        ),
    ],
)
def test_v18(build: Build, text: str) -> None:
    found = list(check_mixed(engine(build)))
    assert [(each.code, each.node, each.rule) for each in found] == (
        [("V18", "mul/Mul", "I")] if text else []
    )
    assert all(text in each.message for each in found)


def test_v18_of_add_has_rule_of_verdict() -> None:
    (found,) = check_mixed(engine(lambda g, x: g.op("Add", [g.qdq(x), other(g)], "add/Add")))
    assert (found.code, found.rule) == ("V18", "F5")
    pooled = engine(lambda g, x: g.op("Add", [g.qdq(x), other(g, "z", (1, 16, 1, 1))], "add/Add"))
    assert [each.rule for each in check_mixed(pooled)] == ["F6"]


def test_add_of_other_finding_is_left_out() -> None:
    """V17 names the Add of two quantized operands.

    What comes behind it is looked at again.
    """

    def build(g: GraphBuilder, x: str) -> str:
        total = g.op(
            "Add", [g.qdq(x), g.qdq(g.conv(g.qdq(other(g)), 16, 16, name="branch"))], "add/Add"
        )
        return g.op("Mul", [g.qdq(total), other(g, "w")], "mul/Mul")

    assert said(check_mixed(engine(build))) == [("V18", "mul/Mul")]


@pytest.mark.parametrize(
    "build",
    [
        lambda g, x: g.op(
            "Add", [g.qdq(x), g.qdq(g.conv(g.qdq(other(g)), 16, 16))], "quantized/Add"
        ),
        lambda g, x: g.op(
            "Add", [g.qdq(x), g.conv(other(g), 16, 16, quantized=False)], "fused/Add"
        ),
        lambda g, x: g.op(
            "Mul", [g.conv(g.qdq(x), 16, 16), g.const(np.ones((16, 1, 1)))], "fused/Mul"
        ),
    ],
    ids=["V17 or V18 by the rules of Adds", "inside of a kernel", "scale inside of a kernel"],
)
def test_what_other_rules_speak_of_is_left_out(build: Build) -> None:
    assert said(check_mixed(engine(build))) == []


@pytest.mark.parametrize(
    ("axes", "expected"), [([1], []), ([2, 3], [("V19", "mean"), ("V18", "mul")])]
)
def test_v18_leaves_normalizations_out(axes: list[int], expected: list[tuple[str, str]]) -> None:
    """A reader of a tensor whose channel mean is taken.

    A pool is no such mean.
    """

    def build(g: GraphBuilder, x: str) -> str:
        read = g.qdq(x)
        mean = g.op("ReduceMean", [read], "mean", axes=axes)
        return g.op("Mul", [read, mean], "mul")

    assert said(check_mixed(engine(build))) == expected


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda g, x: g.qdq(g.op("Exp", [g.qdq(x)], "exp")), [("V22", "exp")]),
        (lambda g, x: g.op("Exp", [g.qdq(x)], "exp"), []),
        (lambda g, x: g.qdq(g.op("Exp", [x], "exp")), []),
        (lambda g, x: g.qdq(g.op("Pow", [g.qdq(x), g.const(2.0)], "exp")), [("V22", "exp")]),
        (lambda g, x: g.qdq(g.op("Pow", [g.qdq(x), other(g)], "exp")), []),
        (lambda g, x: g.qdq(g.op("Ceil", [g.qdq(x)], "exp")), []),
        (
            lambda g, x: g.qdq(
                g.op("Exp", [g.op("MaxPool", [g.qdq(x)], kernel_shape=[1, 1])], "exp")
            ),
            [],
        ),
    ],
)
def test_v22_needs_quantizers_that_are_written_on_both_sides(
    build: Build, expected: list[tuple[str, str]]
) -> None:
    assert said(check_mixed(engine(build))) == expected


def test_v22_needs_exactly_one_reader() -> None:
    g = GraphBuilder()
    y = g.op("Exp", [g.qdq(g.op("Tanh", [g.input()]))], "exp")
    g.output(g.qdq(y), y)
    assert said(check_mixed(predict_engine(g.graph()))) == []
    g = GraphBuilder()
    x = g.op("Tanh", [g.input()])
    g.op("Exp", [g.qdq(x)], "exp")
    g.output(x)
    assert said(check_mixed(predict_engine(g.graph()))) == []
    g = GraphBuilder()
    g.output(g.qdq(g.op("Exp", [g.const(1.0)], "exp")))
    assert said(check_mixed(predict_engine(g.graph()))) == []


@pytest.mark.parametrize("op", ["InstanceNormalization", "Exp"])
def test_v22_allows_normalization_of_int8_kernel_output(op: str) -> None:
    g = GraphBuilder()
    parameters = [g.const(np.ones(16)), g.const(np.zeros(16))] if op != "Exp" else []
    g.output(g.qdq(g.op(op, [g.qdq(image(g)), *parameters], "op")))
    assert said(check_mixed(predict_engine(g.graph()))) == ([("V22", "op")] if op == "Exp" else [])
