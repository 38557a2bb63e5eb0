"""Details of single rules: the operand in a message, and limits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx_graphs import GraphBuilder
from placement_graphs import operands

from qat_lib.analysis import analyze_graph
from qat_lib.analysis.findings import Finding


def findings(g: GraphBuilder, code: str) -> list[Finding]:
    return [finding for finding in analyze_graph(g.graph()).findings if finding.code == code]


@pytest.mark.parametrize(
    ("quantize_input", "quantize_weight", "lacking"),
    [(True, False, "the weight"), (False, True, "the input")],
)
def test_v10_names_the_operand_that_is_not_quantized(
    quantize_input: bool, quantize_weight: bool, lacking: str
) -> None:
    (found,) = findings(
        operands(quantize_input=quantize_input, quantize_weight=quantize_weight), "V10"
    )
    assert found.message.startswith(lacking)
    assert f"Quantize {lacking} of" in found.advice


def test_v10_of_two_activations() -> None:
    g = GraphBuilder()
    a, b = g.input("a", (4, 32)), g.input("b", (32, 32))
    g.output(g.op("MatMul", [g.qdq(a), b]))
    (found,) = findings(g, "V10")
    assert found.message.startswith("one of the two activations")


def test_v10_of_a_convolution_whose_weight_is_computed() -> None:
    g = GraphBuilder()
    g.output(g.op("Conv", [g.qdq(g.input()), g.qdq(g.input("w", (16, 16, 3, 3)))]))
    (found,) = findings(g, "V10")
    assert "is computed, not constant" in found.message


@pytest.mark.parametrize(
    ("op", "shape", "weight", "options", "channels"),
    [
        ("Conv", (1, 24, 8), (16, 24, 3), {}, "24"),
        ("Conv", (1, 16, 8), (24, 16, 3), {}, "24"),
        ("Conv", (1, 24, 8, 8), (40, 24, 3, 3), {}, "24 and 40"),
        ("Conv", (1, 24, 8, 8), (24, 24, 3, 3), {}, "24"),
        ("Conv", (1, 48, 8, 8), (32, 24, 3, 3), {"group": 2}, ""),
        ("Conv", (1, 24, 8, 8), (24, 1, 3, 3), {"group": 24}, ""),
        ("ConvTranspose", (1, 24, 8, 8), (24, 24, 3, 3), {}, ""),
    ],
)
def test_v25_channels_that_tensor_cores_pad(
    op: str, shape: tuple[int, ...], weight: tuple[int, ...], options: dict[str, Any], channels: str
) -> None:
    g = GraphBuilder()
    x = g.op("Tanh", [g.input(shape=shape)])
    g.output(g.op(op, [g.qdq(x), g.weight(weight, None)], f"quant_layer/{op}", **options))
    messages = [finding.message for finding in findings(g, "V25")]
    assert len(messages) == bool(channels)
    assert all(f"has {channels} channels" in message for message in messages)


@pytest.mark.parametrize(
    ("shape", "weight", "options", "text"),
    [
        ((1, 15, 8, 8), (15, 15, 3, 3), {}, "15 input and 15 output channels in 1 groups"),
        ((1, 16, 8, 8), (16, 16, 3, 3), {}, ""),
        ((1, 8, 8, 8), (16, 8, 3, 3), {}, ""),
        ((1, 16, 8, 8), (8, 16, 3, 3), {}, ""),
        ((1, 8, 8, 8), (15, 8, 3, 3), {}, "8 input and 15 output channels in 1 groups"),
        ((1, 16, 8, 8), (15, 16, 3, 3), {}, ""),
        ((1, 8, 8, 8), (16, 8, 3, 1), {}, "8 input and 16 output channels in 1 groups"),
        ((1, 8, 8, 8), (8, 1, 3, 3), {"group": 8}, ""),
        ((1, 8, 8, 8), (8, 1, 2, 3), {"group": 8}, "8 input and 8 output channels in 8 groups"),
        (
            (1, 12, 8, 8),
            (12, 1, 3, 3),
            {"group": 12},
            "12 input and 12 output channels in 12 groups",
        ),
    ],
)
def test_v24_channels_of_a_convolution(
    shape: tuple[int, ...], weight: tuple[int, ...], options: dict[str, Any], text: str
) -> None:
    g = GraphBuilder()
    x = g.op("Tanh", [g.input(shape=shape)])
    g.output(g.op("Conv", [g.qdq(x), g.weight(weight)], "quant_conv/Conv", **options))
    messages = [finding.message for finding in findings(g, "V24")]
    assert len(messages) == bool(text)
    assert all(text in message for message in messages)


@pytest.mark.parametrize(
    ("shapes", "text"),
    [
        (((2, 16), (16, 16)), ""),
        (((2, 15), (15, 16)), "has 15 inner products"),
        (((2, 16), (16, 15)), "has 15 outputs"),
        (((1, 16), (16, 16)), "multiplies one row"),
        (((1, 1, 16), (16, 16)), "multiplies one row"),
        (((1, 2, 16), (16, 16)), ""),
        ((("batch", 16), (16, 16)), ""),
    ],
)
def test_v24_sizes_of_a_product(shapes: tuple[Any, Any], text: str) -> None:
    g = GraphBuilder()
    g.output(g.dense(g.qdq(g.input(shape=shapes[0])), *shapes[1]))
    messages = [finding.message for finding in findings(g, "V24")]
    assert len(messages) == bool(text)
    assert all(text in message for message in messages)


def test_v24_counts_the_inner_products_of_a_transposed_operand() -> None:
    g = GraphBuilder()
    g.output(
        g.op(
            "Gemm",
            [g.qdq(g.input(shape=(16, 8))), g.weight((16, 16), 1)],
            "quant_dense/Gemm",
            transA=1,
        )
    )
    assert findings(g, "V24") == []


@pytest.mark.parametrize(
    ("op", "axis", "group", "text"),
    [
        ("ConvTranspose", 1, 1, "is a transposed convolution with one scale"),
        ("ConvTranspose", 1, 2, "is a transposed convolution in 2 groups with one scale"),
        ("ConvTranspose", None, 1, ""),
        ("Conv", 0, 1, ""),
    ],
)
def test_v26_transposed_convolutions(op: str, axis: int | None, group: int, text: str) -> None:
    g = GraphBuilder()
    shape = (16, 16 // group, 2, 2) if op == "ConvTranspose" else (16, 16, 2, 2)
    g.output(g.op(op, [g.qdq(g.input()), g.weight(shape, axis)], f"quant_up/{op}", group=group))
    messages = [finding.message for finding in findings(g, "V26")]
    assert len(messages) == bool(text)
    assert all(text in message for message in messages)
    on_cpu = analyze_graph(g.graph(), target="openvino")
    assert "V26" not in {finding.code for finding in on_cpu.findings}


def scores(
    build: Callable[[GraphBuilder, str], str], *, weighs: str = "MatMul", constant: bool = False
) -> list[Finding]:
    """Return V23's findings on an attention with scores through ``build``.

    The scores go through it to the Softmax.
    """
    g = GraphBuilder()
    q, k, v = (g.qdq(g.input(name, (4, 32, 32))) for name in "qkv")
    way = build(g, g.op("MatMul", [q, k], "scores/MatMul"))
    weights = g.qdq(g.op("Softmax", [way], "attention/Softmax"))
    values = g.weight((4, 32, 32), None) if constant else v
    g.output(g.op(weighs, [weights, values], "values/MatMul"))
    return findings(g, "V23")


def test_v23_says_which_operator_reads_the_quantized_scores() -> None:
    (found,) = scores(lambda g, x: g.qdq(x))
    assert "input of its Softmax is quantized" in found.message
    (found,) = scores(lambda g, x: g.op("Mul", [g.qdq(x), g.const(0.1)], "scale/Mul"))
    assert "input of its Mul (mask or scale) is quantized" in found.message
    assert found.node == "scale/Mul"


def test_v23_is_about_products_of_two_activations() -> None:
    assert scores(lambda g, x: g.qdq(x), constant=True) == []
    assert scores(lambda g, x: g.qdq(x), weighs="Add") == []
    assert scores(lambda g, x: g.op("Tanh", [g.qdq(x)])) == []  # not on the way


@pytest.mark.parametrize(("length", "found"), [(7, 1), (8, 0)])
def test_v23_looks_a_few_operators_back(length: int, found: int) -> None:
    def scaled(g: GraphBuilder, x: str) -> str:
        x = g.qdq(x)
        for _ in range(length):
            x = g.op("Mul", [x, g.const(0.5)])
        return x

    assert len(scores(scaled)) == found


def pair(dtype: Any) -> GraphBuilder:
    """A pair on an activation with zero points of ``dtype``."""
    g = GraphBuilder()
    scale, zero = g.const(0.1), g.const(0, dtype)
    q = g.op("QuantizeLinear", [g.input(), scale, zero], "x_quantizer/QuantizeLinear")
    x = g.op("DequantizeLinear", [q, scale, zero], "x_quantizer/DequantizeLinear")
    g.output(g.conv(x, 16, 16))
    return g


def test_v03_says_what_tensorrt_makes_of_uint8() -> None:
    found = {
        finding.node.rpartition("/")[2]: finding.message
        for finding in findings(pair(np.uint8), "V03")
    }
    assert found["DequantizeLinear"].endswith("TensorRT refuses it.")
    assert "silently takes the range for INT8" in found["QuantizeLinear"]


@pytest.mark.parametrize(
    ("readers", "found"),
    [(("conv",), 1), (("pool",), 1), (("tanh",), 0), (("conv", "tanh"), 0), (("output",), 0)],
)
def test_h1_needs_readers_that_can_pad_themselves(readers: tuple[str, ...], found: int) -> None:
    g = GraphBuilder()
    x = g.qdq(g.op("Tanh", [g.input()]))
    padded = g.op("Pad", [x, g.const([0, 0, 1, 1, 0, 0, 1, 1], np.int64)], "pad/Pad")
    made = {
        "conv": lambda: g.conv(padded, 16, 16),
        "pool": lambda: g.op("AveragePool", [padded], kernel_shape=[2, 2]),
        "tanh": lambda: g.op("Tanh", [padded]),
        "output": lambda: padded,
    }
    g.output(*(made[reader]() for reader in readers))
    assert len(findings(g, "H1")) == found
