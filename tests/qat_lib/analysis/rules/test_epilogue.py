"""Findings on a layer's output: float readers, cut kernels, padding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx_graphs import GraphBuilder, image

from qat_lib.analysis.engine import predict_engine
from qat_lib.analysis.findings import Finding
from qat_lib.analysis.rules.epilogue import check_epilogue

Read = Callable[[GraphBuilder, str], str]


def findings(g: GraphBuilder, code: str = "") -> list[Finding]:
    return [
        found for found in check_epilogue(predict_engine(g.graph())) if code in ("", found.code)
    ]


def int8(g: GraphBuilder, x: str) -> str:
    return g.conv(g.qdq(x), 16, 16, name="int8")


def tanh(g: GraphBuilder, x: str) -> str:
    return g.op("Tanh", [x], "tanh/Tanh")


def exp(g: GraphBuilder, x: str) -> str:
    return g.op("Exp", [x], "exp/Exp")


def pool(g: GraphBuilder, x: str) -> str:
    return g.op("GlobalAveragePool", [x], "pool/GlobalAveragePool")


def output(g: GraphBuilder, x: str) -> str:
    return x


def read_by(*readers: Read, quantized: bool = True) -> GraphBuilder:
    """A convolution and a Relu whose output these operators read."""
    g = GraphBuilder()
    y = g.op("Relu", [image(g, quantized=quantized)], "relu/Relu")
    g.output(*(reader(g, y) for reader in readers))
    return g


@pytest.mark.parametrize(
    ("readers", "why", "severity"),
    [
        ((int8,), "", ""),
        ((tanh,), "", ""),
        ((tanh, output), "", ""),
        ((int8, tanh), "because 'tanh' reads it in floating point:", "info"),
        ((int8, output), "because the graph's output reads it in floating point:", "info"),
        ((int8, pool), "because 'pool' reads it in floating point:", "warning"),
        ((int8, pool, tanh), "because 'pool' and 'tanh' read it in floating point:", "warning"),
        (
            (int8, tanh, exp, output),
            "because 'tanh' and 'exp' and the graph's output read it in",
            "info",
        ),
    ],
)
def test_v13_names_the_readers(readers: tuple[Read, ...], why: str, severity: str) -> None:
    found = findings(read_by(*readers))
    assert [(each.code, each.node, each.keras_layer, each.severity) for each in found] == (
        [("V13", "relu/Relu", "first", severity)] if why else []
    )
    for each in found:
        assert why in each.message
        advice = (
            "No other placement avoids this"
            if severity == "info"
            else "Quantize the input of 'pool'"
        )
        assert each.advice.startswith(advice)
    assert findings(read_by(*readers, quantized=False)) == []


def test_v13_of_readers_that_want_different_scales() -> None:
    g = read_by(int8, lambda g, x: g.conv(g.qdq(x, 0.2), 16, 16, name="other"))
    (found,) = findings(g)
    assert (found.code, found.severity) == ("V13", "warning")
    assert "because its readers need different scales" in found.message


def with_residual(*readers: Read, quantized: bool) -> GraphBuilder:
    """A convolution fused with an Add.

    The other operand is quantized or not.
    """
    g = GraphBuilder()
    y = image(g)
    other = g.input("r", (1, 16, 16, 16))
    total = g.op("Add", [y, g.qdq(other) if quantized else other], "add/Add")
    g.output(*(reader(g, total) for reader in readers))
    return g


def test_v13_of_a_kernel_with_a_residual() -> None:
    (found,) = findings(with_residual(int8, quantized=False))
    assert (found.severity, found.node) == ("info", "add/Add")
    assert "has a floating-point residual (V15)" in found.message
    (found,) = findings(with_residual(int8, pool, quantized=True))
    assert found.severity == "info"
    assert "a reader of the Add in its kernel is not quantized (V16)" in found.message
    two_scales = with_residual(
        int8, lambda g, x: g.conv(g.qdq(x, 0.2), 16, 16, name="other"), quantized=True
    )
    (found,) = findings(two_scales)
    assert (found.severity, "different scales" in found.message) == ("warning", True)
    assert findings(with_residual(int8, quantized=True)) == []
    assert findings(with_residual(tanh, quantized=True)) == []


def relu(g: GraphBuilder, x: str) -> str:
    return g.op("Relu", [x], "relu/Relu")


def silu(g: GraphBuilder, x: str) -> str:
    return g.op("Mul", [x, g.op("Sigmoid", [x], "gate/Sigmoid")], "gate/Mul")


@pytest.mark.parametrize(
    ("behind", "node"),
    [
        (lambda g, x: [relu(g, g.qdq(x))], "relu/Relu"),
        (lambda g, x: [silu(g, g.qdq(x))], "gate/Mul"),
        (lambda g, x: [tanh(g, g.qdq(x))], ""),
        (lambda g, x: [relu(g, x)], ""),
        (lambda g, x: [(q := g.qdq(x)), relu(g, q)], ""),
        (lambda g, x: [relu(g, g.qdq(x)), tanh(g, x)], ""),
        (lambda g, x: [relu(g, (q := g.qdq(x))), exp(g, q)], ""),
        (lambda g, x: [silu(g, (q := g.qdq(x))), exp(g, q)], ""),
        (lambda g, x: [g.qdq(x)], ""),
        (lambda g, x: [relu(g, g.op("MaxPool", [g.qdq(x)], kernel_shape=[1, 1]))], ""),
    ],
)
def test_v14_names_what_is_cut_off(
    behind: Callable[[GraphBuilder, str], list[str]], node: str
) -> None:
    g = GraphBuilder()
    g.output(*behind(g, image(g)))
    found = findings(g, "V14")
    assert [(each.node, each.keras_layer) for each in found] == ([(node, "first")] if node else [])
    assert all(
        f"between 'first' and its {node.partition('/')[2]} keep" in each.message for each in found
    )


def test_v14_of_a_depthwise_layer_is_not_about_gates() -> None:
    for build, count in ((relu, 1), (silu, 0)):
        g = GraphBuilder()
        g.output(build(g, g.qdq(image(g, group=16))))
        assert len(findings(g, "V14")) == count


def test_v14_is_not_about_what_follows_an_add() -> None:
    assert findings(with_residual(lambda g, x: relu(g, g.qdq(x)), quantized=True), "V14") == []


def test_unread_layer_is_not_cut_off() -> None:
    g = GraphBuilder()
    x = g.qdq(g.input(shape=(1, 16, 16, 16)))
    g.conv(x, 16, 16, name="unread")
    g.output(g.conv(x, 16, 16, name="read"))
    assert findings(g) == []


@pytest.mark.parametrize(
    ("group", "behind", "expected"),
    [
        (16, silu, "the Sigmoid and Mul behind it"),
        (16, relu, ""),
        (16, lambda g, x: silu(g, g.qdq(x)), ""),
        (1, silu, ""),
        (16, lambda g, x: silu(g, g.op("Add", [x, g.input("r", (1, 16, 16, 16))])), ""),
    ],
)
def test_v13_of_a_depthwise_layer_before_a_gate(group: int, behind: Read, expected: str) -> None:
    g = GraphBuilder()
    g.output(int8(g, behind(g, image(g, group=group))))
    found = [
        each for each in findings(g, "V13") if "a depthwise kernel does not take" in each.message
    ]
    assert [(each.node, each.severity) for each in found] == (
        [("quant_first/Conv", "info")] if expected else []
    )
    assert all(expected in each.message for each in found)


def padded(
    pads: list[int], *, opset: int = 17, shape: Any = (1, 16, 8, 8), **attributes: Any
) -> GraphBuilder:
    """A Tanh, a padding and a convolution or pool behind it."""
    g = GraphBuilder(opset=opset)
    x = g.op("Tanh", [g.input(shape=shape)])
    if opset < 11:
        y = g.op("Pad", [x], "pad/Pad", pads=pads, **attributes)
    else:
        axes = (
            [g.const(0.0), g.const(attributes.pop("axes"), np.int64)]
            if "axes" in attributes
            else []
        )
        y = g.op("Pad", [x, g.const(pads, np.int64), *axes], "pad/Pad", **attributes)
    g.output(g.op("AveragePool", [y], kernel_shape=[2] * (len(shape) - 2)))
    return g


@pytest.mark.parametrize(
    ("pads", "shape", "found"),
    [
        ([0, 0, 1, 1, 0, 0, 1, 1], (1, 16, 8, 8), True),
        ([0, 0, 1, 0, 0, 0, 0, 0], (1, 16, 8, 8), True),
        ([0, 0, 0, 0, 0, 0, 0, 0], (1, 16, 8, 8), True),
        ([1, 0, 1, 1, 0, 0, 1, 1], (1, 16, 8, 8), False),
        ([0, 1, 1, 1, 0, 0, 1, 1], (1, 16, 8, 8), False),
        ([0, 0, 1, 1, 1, 0, 1, 1], (1, 16, 8, 8), False),
        ([0, 0, 1, 1, 0, 1, 1, 1], (1, 16, 8, 8), False),
        ([0, 0, 1, 0, 0, 1], (1, 16, 8), True),
        ([0, 0, 1, 0, 1, 1], (1, 16, 8), False),
        ([0, 0, 1, 1, 1, 0, 0, 1, 1, 1], (1, 16, 8, 8, 8), True),
        ([0, 0, 1, 1, 1, 0, 1, 1, 1, 1], (1, 16, 8, 8, 8), False),
    ],
)
@pytest.mark.parametrize("opset", [10, 17], ids=["attribute", "input"])
def test_h1_is_about_pads_of_the_image(
    pads: list[int], shape: Any, found: bool, opset: int
) -> None:
    hints = findings(padded(pads, shape=shape, opset=opset))
    assert [(each.code, each.node) for each in hints] == [("H1", "pad/Pad")] * found


def test_h1_needs_zeros_all_axes_and_constants() -> None:
    assert findings(padded([0, 0, 1, 1, 0, 0, 1, 1], mode="edge")) == []
    assert findings(padded([0, 0, 1, 1, 0, 0, 1, 1], axes=[0, 1, 2, 3], opset=18)) == []
    g = GraphBuilder()
    y = g.op("Pad", [g.op("Tanh", [g.input()]), g.input("pads", (8,), np.int64)], "pad/Pad")
    g.output(g.op("AveragePool", [y], kernel_shape=[2, 2]))
    assert findings(g) == []


def test_h1_needs_a_reader() -> None:
    g = GraphBuilder()
    x = g.op("Tanh", [g.input()])
    g.op("Pad", [x, g.const([0, 0, 1, 1, 0, 0, 1, 1], np.int64)], "pad/Pad")
    g.output(x)
    assert findings(g) == []


def test_h1_is_not_about_a_pool_that_pads_nothing() -> None:
    g = GraphBuilder()
    y = g.op("MaxPool", [g.op("Tanh", [g.input()])], kernel_shape=[1, 1], pads=[0] * 4)
    g.output(g.conv(y, 16, 16, quantized=False))
    assert findings(g) == []


def test_h1_is_found_behind_other_operators() -> None:
    g = read_by(tanh)
    y = g.op(
        "Pad",
        [g.op("Tanh", [g.input("z")]), g.const([0, 0, 1, 1, 0, 0, 1, 1], np.int64)],
        "pad/Pad",
    )
    g.output(g.conv(y, 16, 16, quantized=False))
    assert [each.code for each in findings(g)] == ["H1"]
