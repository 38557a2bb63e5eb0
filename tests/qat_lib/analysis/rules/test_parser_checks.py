"""Parser checks beyond quantizers: each operator, and its nearest passing case."""

from __future__ import annotations

import inspect
from itertools import pairwise
from typing import Any, get_args

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx_graphs import GraphBuilder

from qat_lib.analysis.analyze import analyze_graph, analyze_onnx
from qat_lib.analysis.rules.parser import TensorRTMajor, check_parser_rules

Q, DQ = "QuantizeLinear", "DequantizeLinear"


def parser_rules(g: GraphBuilder, **options: Any) -> list[str]:
    return [
        f"{each.code} {each.rule} {each.node}" for each in check_parser_rules(g.graph(), **options)
    ]


@pytest.mark.parametrize(
    ("copies", "outputs", "expected"),
    [(0, ["q"], True), (1, ["c0"], True), (3, ["c2"], True), (2, ["c0"], True), (2, ["d"], False)],
)
def test_final_quantizer_is_found_behind_copies(
    copies: int, outputs: list[str], expected: bool
) -> None:
    g = GraphBuilder()
    names = ["q", *(f"c{i}" for i in range(copies))]
    g.nodes.append(helper.make_node(Q, [g.input(), g.const(0.1), g.const(0, np.int8)], ["q"], "q"))
    g.nodes.append(helper.make_node("Cast", ["q"], ["cast"], to=TensorProto.FLOAT))
    for source, target in pairwise(names):
        g.nodes.append(helper.make_node("Identity", [source], [target]))
    g.nodes.append(helper.make_node(DQ, [names[-1], g.const(0.1), g.const(0, np.int8)], ["d"]))
    g.output(*outputs)
    assert ("V07 L q" in parser_rules(g)) is expected


@pytest.mark.parametrize(
    ("op", "domain", "expected"),
    [
        ("QLinearConv", "", True),
        ("QLinearAdd", "com.microsoft", True),
        ("QGemm", "com.microsoft", True),
        ("DynamicQuantizeLinear", "", True),
        (Q, "com.microsoft", True),
        (DQ, "com.microsoft", True),
        ("Gelu", "com.microsoft", False),
        ("Conv", "", False),
    ],
)
def test_integer_operators(op: str, domain: str, expected: bool) -> None:
    g = GraphBuilder()
    g.output(g.op(op, [g.input(), g.const(np.ones((16, 16, 1, 1)))], "node", domain=domain))
    assert ("V05 P15 node" in parser_rules(g)) is expected


@pytest.mark.parametrize(
    ("declared", "shape", "expected"),
    [
        ([3, 5], (8, 16, 3, 5), False),
        ([5, 3], (8, 16, 3, 5), True),
        ([3, 3], (8, 16, 3, 5), True),
        ([3], (8, 16, 3, 5), False),
        (None, (8, 16, 3, 5), False),
    ],
)
def test_kernel_shapes(declared: list[int] | None, shape: tuple[int, ...], expected: bool) -> None:
    g = GraphBuilder()
    attributes = {} if declared is None else {"kernel_shape": declared}
    g.output(g.op("Conv", [g.input(), g.weight(shape)], "conv/Conv", **attributes))
    found = [each for each in check_parser_rules(g.graph()) if each.rule == "P18"]
    assert len(found) == expected
    assert all(
        f"kernel_shape is {declared} and the weight is {list(shape)}." in each.message
        for each in found
    )


def test_a_kernel_shape_is_compared_with_what_is_known() -> None:
    g = GraphBuilder()
    x = g.input()
    for weight in (
        g.op("Foreign", [g.const(np.ones((8, 16, 3, 3)))]),
        g.input("w", (8, 16, "k", "k")),
    ):
        g.output(g.op("Conv", [x, weight], kernel_shape=[1, 1]))
    assert parser_rules(g) == []


@pytest.mark.parametrize("position", [1, 2, 3, 4, 0])
def test_parameters_of_a_batch_normalization_are_constants(position: int) -> None:
    g = GraphBuilder()
    inputs = [g.input("x"), *(g.const(np.ones(16)) for _ in range(4))]
    if position:
        inputs[position] = g.input("given", (16,))
    g.output(g.op("BatchNormalization", inputs, "bn/BatchNormalization"))
    assert parser_rules(g) == ["V07 P19 bn/BatchNormalization"] * (position > 0)


@pytest.mark.parametrize(("tensorrt", "expected"), [(8, ["V07 P17 w"]), (10, []), (11, [])])
def test_tensorrt_8_takes_no_stored_integers(tensorrt: Any, expected: list[str]) -> None:
    g = GraphBuilder()
    scale, zero = g.const(0.1), g.const(0, np.int8)
    stored = g.op(DQ, [g.const(np.ones((16, 16, 1, 1)), np.int8), scale, zero], "w")
    x = g.op(DQ, [g.input(dtype=np.int8), scale, zero], "x")
    g.output(g.op("Conv", [x, stored], "conv"))
    assert parser_rules(g, tensorrt=tensorrt) == expected


def test_versions_of_tensorrt() -> None:
    """The type names the checkable ones; 10 is the default."""
    assert get_args(TensorRTMajor) == (8, 10, 11)
    for function in (check_parser_rules, analyze_onnx, analyze_graph):
        assert inspect.signature(function).parameters["tensorrt"].default == 10
