"""Findings on graph inputs, differing types and scales, and floating-point islands.

The islands lie between INT8 kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx_graphs import GraphBuilder, image

from qat_lib.analysis.analyze import find_islands
from qat_lib.analysis.engine import PredictedEngine, predict_engine
from qat_lib.analysis.findings import Finding
from qat_lib.analysis.rules.borders import check_borders
from qat_lib.analysis.rules.scales import check_scales

Build = Callable[[GraphBuilder, str], str]


def said(found: Any) -> list[tuple[str, str]]:
    return [(each.code, each.node) for each in found]


def inputs(*, cast: bool, transpose: bool, moved: bool = False) -> PredictedEngine:
    g = GraphBuilder()
    x = g.input("image", dtype=np.float16 if cast else None)
    x = g.op("Cast", [x], to=1) if cast else x
    x = g.op("Tanh", [x]) if moved else x
    x = g.op("Transpose", [x], "flip/Transpose", perm=[0, 1, 3, 2]) if transpose else x
    g.output(g.conv(g.qdq(x, name="image_quantizer"), 16, 16))
    return predict_engine(g.graph())


@pytest.mark.parametrize("cast", [False, True])
def test_h2_and_h3(cast: bool) -> None:
    assert said(check_borders(inputs(cast=cast, transpose=False))) == [
        ("H2", "image_quantizer/QuantizeLinear")
    ]
    (quantized, transposed) = check_borders(inputs(cast=cast, transpose=True))
    assert (quantized.code, transposed.code, transposed.node) == ("H2", "H3", "flip/Transpose")
    name = "cast/Cast" if cast else "image"
    assert quantized.message.startswith(f"the input '{name}")
    assert transposed.message.startswith(f"the input '{name}")
    assert said(check_borders(inputs(cast=cast, transpose=True, moved=True))) == []


def test_h2_is_about_quantizing_only() -> None:
    """An input that arrives as INT8 and is dequantized has no Q."""
    g = GraphBuilder()
    g.output(g.op("Tanh", [g.dq(g.input(dtype=np.int8))]))
    assert said(check_borders(predict_engine(g.graph()))) == []


def types(first: Any, scale: Any, bias: Any = np.float32, *, op: str = "Add") -> list[Finding]:
    """Return the findings on an operator of three operands.

    They are a tensor, a dequantized tensor and a third operand.
    """
    g = GraphBuilder(opset=19)
    q = g.op("QuantizeLinear", [g.input("b"), g.const(0.1), g.const(0, np.int8)])
    second = g.op("DequantizeLinear", [q, g.const(0.1, scale), g.const(0, np.int8)])
    g.output(g.op(op, [g.input("a", dtype=first), second, g.input("c", dtype=bias)], "layer/op"))
    return [found for found in check_borders(predict_engine(g.graph())) if found.code == "V28"]


@pytest.mark.parametrize(
    ("found", "listed"),
    [
        (types(np.float32, np.float32), ""),
        (types(np.float16, np.float32), "(input 0 float16, input 1 float32, input 2 float32)"),
        (types(np.float32, np.float16), "(input 0 float32, input 1 float16, input 2 float32)"),
        (types(np.float16, np.float16, np.float16), ""),
        (types(np.float16, np.float16), "(input 0 float16, input 1 float16, input 2 float32)"),
        (types(np.int8, np.float16, np.float32), "(input 1 float16, input 2 float32)"),
        (types(np.int8, np.float32), ""),
        (types(np.float16, np.float32, op="Where"), ""),
    ],
)
def test_v28_lists_the_types(found: list[Finding], listed: str) -> None:
    assert [each.node for each in found] == ["layer/op"] * bool(listed)
    assert all(listed in each.message for each in found)


def test_v08_lists_the_scales_of_a_tensor_in_order() -> None:
    g = GraphBuilder()
    x = g.op("Tanh", [g.input()], "tanh/Tanh")
    g.output(*(g.conv(g.qdq(x, scale), 16, 16, name=f"c{scale}") for scale in (0.5, 0.125, 0.25)))
    (found,) = check_scales(predict_engine(g.graph()))
    assert (found.code, found.node) == ("V08", "tanh/Tanh")
    assert "with 3 different scales (0.125, 0.25, 0.5)" in found.message


def test_v08_is_not_about_constants_or_one_scale() -> None:
    g = GraphBuilder()
    weight = g.const(np.ones((16, 16)))
    x = g.qdq(g.input(shape=(4, 16)))
    for scale in (0.5, 0.25):
        g.output(g.op("MatMul", [x, g.qdq(weight, scale)]))
    g.output(g.op("MatMul", [x, g.qdq(weight, 0.25)]))
    assert list(check_scales(predict_engine(g.graph()))) == []


def test_v08_of_an_input_names_the_input() -> None:
    g = GraphBuilder()
    x = g.input("image")
    g.output(*(g.conv(g.qdq(x, scale), 16, 16, name=f"c{scale}") for scale in (0.5, 0.25)))
    assert said(check_scales(predict_engine(g.graph()))) == [("V08", "image")]


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (
            lambda g, x: g.qdq(
                g.op("MaxPool", [g.qdq(x)], "pool", kernel_shape=[1, 1]), 0.2, "second"
            ),
            "second",
        ),
        (lambda g, x: g.qdq(g.qdq(x), 0.2, "second"), ""),
    ],
)
def test_v09_names_the_second_quantizer(build: Build, expected: str) -> None:
    g = GraphBuilder()
    g.output(build(g, g.op("Tanh", [g.input()])))
    found = [each for each in check_scales(predict_engine(g.graph())) if each.code == "V09"]
    assert len(found) == 1
    assert found[0].node.endswith("/QuantizeLinear")
    assert found[0].node.startswith(expected)


def test_a_rescaled_input_of_a_concat_is_no_requantization() -> None:
    g = GraphBuilder()
    parts = [g.op("Tanh", [g.input(name)]) for name in "ab"]
    y = g.op("Concat", [g.qdq(parts[0], 0.1), g.qdq(parts[1], 0.2)], axis=1)
    g.output(g.conv(g.qdq(y), 32, 16))
    assert said(check_scales(predict_engine(g.graph()))) == []


@pytest.mark.parametrize(
    ("between", "expected"),
    [
        (lambda g, x: g.op("Exp", [g.op("Softmax", [x], "a")], "b"), [["a", "b"]]),
        (
            lambda g, x: g.op(
                "Mul",
                [g.op("Softmax", [x], "a"), g.op("Tanh", [g.input("z", (1, 16, 16, 16))], "z")],
                "b",
            ),
            [["a", "z", "b"]],
        ),
        (lambda g, x: x, []),
        (lambda g, x: g.op("Relu", [x], "a"), []),
        (
            lambda g, x: g.op(
                "Exp", [g.conv(g.qdq(g.op("Exp", [x], "a")), 16, 16, name="mid")], "b"
            ),
            [["a"], ["b"]],
        ),
    ],
)
def test_islands_lie_between_int8_kernels(between: Build, expected: list[list[str]]) -> None:
    g = GraphBuilder()
    g.output(g.conv(g.qdq(between(g, image(g))), 16, 16, name="last"))
    found = find_islands(predict_engine(g.graph()))
    names = [sorted(node.name for kernel in island for node in kernel.nodes) for island in found]
    assert names == [sorted(each) for each in expected]


def test_an_island_needs_an_int8_kernel_on_both_sides() -> None:
    before, after = GraphBuilder(), GraphBuilder()
    before.output(before.op("Exp", [image(before)]))
    after.output(after.conv(after.qdq(after.op("Exp", [after.input()])), 16, 16))
    for g in (before, after):
        assert find_islands(predict_engine(g.graph())) == []
