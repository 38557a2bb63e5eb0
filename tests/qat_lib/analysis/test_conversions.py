"""Conversion kernels: predicted precision and scale changes, once per tensor, scale."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from onnx_graphs import GraphBuilder

from qat_lib.analysis.engine import PredictedEngine, predict_engine
from qat_lib.analysis.kernels import Kernel, standalone

Build = Callable[[GraphBuilder, str], list[str]]


def engine(build: Build) -> PredictedEngine:
    """Predict the engine of what is built behind a Tanh ``t``."""
    g = GraphBuilder()
    g.output(*build(g, g.op("Tanh", [g.input()], "t")))
    return predict_engine(g.graph())


def conversions(found: PredictedEngine) -> list[str]:
    """Return the kernels without nodes: reason, input, output and name."""
    return [f"{k.reason} {k.reads} {k.writes} {k.name}" for k in found.kernels if not k.nodes]


def conv(g: GraphBuilder, x: str, name: str = "c") -> str:
    return g.conv(x, 16, 16, 1, name=name)


def q(name: str) -> str:
    return f"{name}/QuantizeLinear"


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda g, x: [g.op("Exp", [x])], []),
        (lambda g, x: [conv(g, g.qdq(x, name="a"))], ["quantize float int8 a/QuantizeLinear"]),
        (
            lambda g, x: [g.op("Exp", [g.qdq(x, name="a")])],
            ["quantize float int8 a/QuantizeLinear", "dequantize int8 float a/QuantizeLinear"],
        ),
        (
            lambda g, x: [g.qdq(x, name="a")],
            ["quantize float int8 a/QuantizeLinear", "dequantize int8 float a/QuantizeLinear"],
        ),
        (
            lambda g, x: [conv(g, g.qdq(g.qdq(x, 0.1, name="a"), 0.2, name="b"))],
            ["quantize float int8 a/QuantizeLinear", "requantize int8 int8 a/QuantizeLinear"],
        ),
        (
            lambda g, x: [conv(g, g.qdq(g.qdq(g.qdq(x, 0.1, name="a"), 0.2), 0.3))],
            [
                "quantize float int8 a/QuantizeLinear",
                *["requantize int8 int8 a/QuantizeLinear"] * 2,
            ],
        ),
        (
            lambda g, x: [conv(g, g.qdq(x, name="a")), conv(g, g.qdq(x, name="b"), "d")],
            ["quantize float int8 a/QuantizeLinear"],
        ),
        (
            lambda g, x: [conv(g, g.qdq(x, 0.1, name="a")), conv(g, g.qdq(x, 0.2, name="b"), "d")],
            ["quantize float int8 a/QuantizeLinear", "quantize float int8 b/QuantizeLinear"],
        ),
        (
            lambda g, x: [conv(g, g.qdq(x, name="a")), g.op("Exp", [g.qdq(x, name="b")])],
            ["quantize float int8 a/QuantizeLinear", "dequantize int8 float b/QuantizeLinear"],
        ),
        (
            lambda g, x: [g.qdq(conv(g, g.qdq(x, name="a")), 0.2, name="b")],
            ["quantize float int8 a/QuantizeLinear", "dequantize int8 float b/QuantizeLinear"],
        ),
        (
            lambda g, x: [conv(g, g.qdq(conv(g, g.qdq(x, name="a")), 0.2), "d")],
            ["quantize float int8 a/QuantizeLinear"],
        ),
        (
            lambda g, x: [
                conv(
                    g,
                    g.qdq(
                        g.op("MaxPool", [g.qdq(x, 0.1, name="a")], kernel_shape=[1, 1]), 0.2, "b"
                    ),
                )
            ],
            ["quantize float int8 a/QuantizeLinear", "requantize int8 int8 b/QuantizeLinear"],
        ),
        (
            lambda g, x: [
                conv(
                    g,
                    g.qdq(
                        g.op("MaxPool", [conv(g, g.qdq(x, name="a"))], kernel_shape=[1, 1]),
                        0.2,
                        "b",
                    ),
                    "d",
                )
            ],
            ["quantize float int8 a/QuantizeLinear"],
        ),
    ],
)
def test_conversions(build: Build, expected: list[str]) -> None:
    assert sorted(conversions(engine(build))) == sorted(expected)


def test_a_quantizer_of_a_constant_is_no_kernel() -> None:
    def build(g: GraphBuilder, x: str) -> list[str]:
        weight = g.qdq(g.const(np.ones((16, 16, 1, 1))), name="w")
        return [g.op("Conv", [g.qdq(x, name="a"), weight])]

    assert conversions(engine(build)) == ["quantize float int8 a/QuantizeLinear"]


@pytest.mark.parametrize("cast", [False, True])
@pytest.mark.parametrize("quantized", [True, False])
def test_what_arrives_as_int8_is_not_quantized(cast: bool, quantized: bool) -> None:
    g = GraphBuilder()
    x = g.op("Cast", [g.input()], to=3) if cast else g.input(dtype=np.int8)
    x = g.dq(x, name="a")
    g.output(conv(g, x) if quantized else g.op("Exp", [x]))
    expected = [] if quantized else ["dequantize int8 float a/DequantizeLinear"]
    assert conversions(predict_engine(g.graph())) == expected


def joined(*scales: float, written: float | None) -> Build:
    def build(g: GraphBuilder, x: str) -> list[str]:
        parts = [x, *(g.op("Tanh", [g.input(name)], name) for name in "uvw"[: len(scales) - 1])]
        read = [
            g.qdq(part, scale, f"q{part[0]}") for part, scale in zip(parts, scales, strict=True)
        ]
        y = g.op("Concat", read, "join", axis=1)
        return [y if written is None else g.conv(g.qdq(y, written), 16 * len(scales), 16, 1)]

    return build


@pytest.mark.parametrize(
    ("scales", "written", "rescaled"),
    [
        ((0.1, 0.1), 0.1, []),
        ((0.1, 0.2), 0.1, ["u"]),
        ((0.2, 0.1, 0.2), 0.1, ["t", "v"]),
        ((0.1, 0.1), 0.2, ["t", "u"]),
        ((0.1, 0.2), None, []),
    ],
)
def test_a_concat_rescales_the_inputs_of_another_scale(
    scales: tuple[float, ...], written: float | None, rescaled: list[str]
) -> None:
    found = engine(joined(*scales, written=written))
    names = [
        kernel.name.partition(":")[0] for kernel in found.kernels if kernel.reason == "rescale"
    ]
    assert names == rescaled
    kinds = {(k.kind, k.reads, k.writes) for k in found.kernels if k.reason == "rescale"}
    assert kinds == ({("requantize", "int8", "int8")} if rescaled else set())
    dequantized = [k for k in found.kernels if k.reason == "dequantize"]
    assert len(dequantized) == (len(scales) if written is None else 0)


def test_a_concat_rescales_what_another_layer_reads_before() -> None:
    def build(g: GraphBuilder, x: str) -> list[str]:
        g.output(conv(g, g.qdq(x, 0.2), "first"))
        return joined(0.2, 0.1, written=0.1)(g, x)

    assert [kernel.name[0] for kernel in engine(build).kernels if kernel.reason == "rescale"] == [
        "t"
    ]


@pytest.mark.parametrize("writes_int8", [True, False])
def test_residual_of_float_kernel_is_dequantized(
    writes_int8: bool,
) -> None:
    def build(g: GraphBuilder, x: str) -> list[str]:
        total = g.op("Add", [conv(g, g.qdq(g.input("z"), name="z")), g.qdq(x, name="r")])
        return [conv(g, g.qdq(total), "d") if writes_int8 else total]

    found = [kernel.name for kernel in engine(build).kernels if kernel.reason == "dequantize"]
    assert found == ([] if writes_int8 else [q("r")])


def test_kernels_by_node_and_scales_that_are_written() -> None:
    def build(g: GraphBuilder, x: str) -> list[str]:
        y = g.op("Relu", [conv(g, g.qdq(x))], "relu")
        return [g.op("Exp", [conv(g, g.qdq(y, 0.25), "d")], "exp")]

    found = engine(build)
    runs = {node.name: found.runs_int8(node) for node in found.flow.operators}
    assert runs == {
        "t": False,
        "quant_c/Conv": True,
        "relu": True,
        "quant_d/Conv": True,
        "exp": False,
    }
    assert [round(scale.largest, 4) for scale in found.written.values()] == [0.25]
    weight = next(node for node in found.graph.nodes if node.name == "c_weight/DequantizeLinear")
    assert not found.runs_int8(weight)


@pytest.mark.parametrize(
    ("kind", "op", "expected"),
    [
        ("reformat", "", True),
        ("requantize", "", True),
        ("elementwise", "Exp", True),
        ("shape", "Transpose", True),
        ("shape", "Flatten", False),
        ("weighted", "Conv", False),
        ("pool", "MaxPool", False),
        ("other", "Softmax", False),
    ],
)
def test_standalone(kind: str, op: str, expected: bool) -> None:
    g = GraphBuilder()
    g.output(g.op(op or "Exp", [g.input()]))
    nodes = g.graph().nodes if op else ()
    assert standalone(Kernel(kind=kind, nodes=nodes, reads="float", writes="float")) is expected  # type: ignore[arg-type]


def test_elementwise_kernels_write_what_the_last_operator_does() -> None:
    found = engine(
        lambda g, x: [g.op("Exp", [g.op("Neg", [x], "n")], "e"), g.op("Softmax", [g.input("s")])]
    )
    (kernel,) = [kernel for kernel in found.kernels if kernel.kind == "elementwise"]
    assert [node.name for node in kernel.nodes] == ["t", "n", "e"]
    assert kernel.values == found.graph.node_by_name["e"].outputs


def test_outputs_that_an_operator_leaves_out_are_no_values() -> None:
    def build(g: GraphBuilder, x: str) -> list[str]:
        y = g.op("MaxPool", [x], "pool", outputs=2, kernel_shape=[1, 1])
        g.nodes[-1].output[1] = ""
        return [y]

    (kernel,) = [kernel for kernel in engine(build).kernels if kernel.kind == "pool"]
    assert len(kernel.values) == 1
