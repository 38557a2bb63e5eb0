"""The kernels that are predicted of a few operators."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from onnx_graphs import GraphBuilder

from qat_lib.analysis.engine import predict_engine
from qat_lib.analysis.operators import is_average_pool


def chain(g: GraphBuilder, x: str, *ops: str) -> str:
    for op in ops:
        x = g.op(op, [x])
    return x


def clip(g: GraphBuilder, x: str) -> str:
    """Clip to 0..6, a multiple of 0.1 but not of 0.11."""
    return g.op("Clip", [x, g.const(0.0), g.const(6.0)])


def kernels(build: Callable[[GraphBuilder, str], list[str]]) -> list[str]:
    """Return a graph's compute kernels: kind, reads, writes and operators."""
    g = GraphBuilder()
    g.output(*build(g, g.input()))
    found = [kernel for kernel in predict_engine(g.graph()).kernels if kernel.nodes]
    return [
        f"{k.kind} {k.reads} {k.writes}: {' '.join(node.op for node in k.nodes)}" for k in found
    ]


FLOAT, INT8 = "elementwise float float", "elementwise int8 int8"


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda g, x: [chain(g, x, "Tanh", "Exp", "Neg")], [f"{FLOAT}: Tanh Exp Neg"]),
        (
            lambda g, x: [chain(g, x, "Tanh", "Softmax", "Neg", "Abs")],
            [f"{FLOAT}: Tanh", "other float float: Softmax", f"{FLOAT}: Neg Abs"],
        ),
        (
            lambda g, x: [g.op("Concat", [chain(g, x, "Tanh"), chain(g, x, "Exp")], axis=1)],
            [f"{FLOAT}: Tanh", f"{FLOAT}: Exp", "concat float float: Concat"],
        ),
        (
            lambda g, x: [g.op("Transpose", [chain(g, x, "Tanh")])],
            [f"{FLOAT}: Tanh", "shape float float: Transpose"],
        ),
        (
            lambda g, x: [chain(g, (y := chain(g, x, "Tanh")), "Exp"), chain(g, y, "Neg")],
            [f"{FLOAT}: Tanh", f"{FLOAT}: Exp", f"{FLOAT}: Neg"],
        ),
        (
            lambda g, x: [chain(g, x, "Tanh", "Exp"), chain(g, x, "Abs", "Neg")],
            [f"{FLOAT}: Tanh Exp", f"{FLOAT}: Abs Neg"],
        ),
        (lambda g, x: [g.op("Mul", [g.op("Sub", [x, x]), x])], [f"{FLOAT}: Sub Mul"]),
        (
            lambda g, x: [
                g.op("Transpose", [g.qdq(g.op("LeakyRelu", [g.op("Mul", [g.qdq(x)] * 2)]))])
            ],
            [f"{FLOAT}: Mul LeakyRelu", "shape int8 int8: Transpose"],
        ),
        (
            lambda g, x: [chain(g, g.qdq(g.op("Mul", [g.qdq(x)] * 2)), "Tanh", "Exp")],
            [f"{INT8}: Mul", f"{FLOAT}: Tanh Exp"],
        ),
        (
            lambda g, x: [g.qdq(chain(g, g.op("Mul", [g.qdq(x)] * 2), "Relu"))],
            [f"{INT8}: Mul Relu"],
        ),
        (lambda g, x: [g.qdq(g.op("Mul", [g.qdq(x), x]))], [f"{FLOAT}: Mul"]),
        (
            lambda g, x: [g.op("MaxPool", [g.qdq(x)], kernel_shape=[2, 2])],
            ["pool int8 int8: MaxPool"],
        ),
        (lambda g, x: [g.op("GlobalAveragePool", [x])], ["pool float float: GlobalAveragePool"]),
        (
            lambda g, x: [g.qdq(g.op("GlobalAveragePool", [g.qdq(x)]))],
            ["pool int8 int8: GlobalAveragePool"],
        ),
        (
            lambda g, x: [g.qdq(g.op("Concat", [g.qdq(x), g.qdq(x)], axis=1))],
            ["concat int8 int8: Concat"],
        ),
        (
            lambda g, x: [g.qdq(y := g.op("Relu", [g.qdq(x)]), 0.2), g.qdq(y, 0.3)],
            [f"{INT8}: Relu"],
        ),
        (lambda g, x: [g.qdq(y := clip(g, g.qdq(x)), 0.2), g.qdq(y, 0.3)], [f"{INT8}: Clip"]),
        (
            lambda g, x: [g.qdq(y := clip(g, g.qdq(x, 0.11)), 0.2), g.qdq(y, 0.3)],
            [f"{FLOAT}: Clip"],
        ),
        (
            lambda g, x: [g.op("Transpose", [g.dq(g.q(x, [0.1] * 16), [0.1] * 16)])],
            ["shape float float: Transpose"],
        ),
    ],
)
def test_predict_kernels(
    build: Callable[[GraphBuilder, str], list[str]], expected: list[str]
) -> None:
    assert kernels(build) == expected


@pytest.mark.parametrize(
    ("quantize_input", "quantize_weight", "reads"),
    [(True, True, "int8"), (True, False, "float"), (False, True, "float"), (False, False, "float")],
)
def test_a_weighted_kernel_reads_int8_when_both_operands_are(
    quantize_input: bool, quantize_weight: bool, reads: str
) -> None:
    def build(g: GraphBuilder, x: str) -> list[str]:
        return [g.conv(g.qdq(x) if quantize_input else x, 16, 16, quantized=quantize_weight)]

    assert kernels(build) == [f"weighted {reads} float: Conv"]


@pytest.mark.parametrize(
    ("shape", "axes", "expected"),
    [
        ((1, 16, 8, 8), [2, 3], True),
        ((1, 16, 8, 8), [3, 2], True),
        ((1, 16, 8, 8), [-2, -1], True),
        ((1, 8, 8, 16), [1, 2], True),
        ((1, 16, 8, 8), [1, 2, 3], False),
        ((1, 16, 8, 8), [1], False),
        ((1, 16, 8, 8), [0, 1], False),
        ((1, 16, 8, 8), None, False),
        ((1, 16, 8), [2], True),
        ((1, 8, 16), [1], True),
        ((1, 16, 8), [0], False),
        ((1, 16), [1], False),
        ((1, 16), None, False),
    ],
)
@pytest.mark.parametrize("opset", [17, 18], ids=["attribute", "input"])
def test_is_average_pool(
    shape: tuple[int, ...], axes: list[int] | None, expected: bool, opset: int
) -> None:
    g = GraphBuilder(opset=opset)
    x = g.input(shape=shape)
    if opset == 17 or axes is None:
        g.output(g.op("ReduceMean", [x], **({} if axes is None else {"axes": axes})))
    else:
        g.output(g.op("ReduceMean", [x, g.const(axes, np.int64)]))
    graph = g.graph()
    assert is_average_pool(graph, graph.nodes[-1]) is expected


@pytest.mark.parametrize(
    ("op", "expected"),
    [("GlobalAveragePool", True), ("GlobalMaxPool", False), ("ReduceMax", False)],
)
def test_is_average_pool_goes_by_the_operator(op: str, expected: bool) -> None:
    g = GraphBuilder()
    g.output(g.op(op, [g.input()]))
    graph = g.graph()
    assert is_average_pool(graph, graph.nodes[-1]) is expected


@pytest.mark.parametrize(
    ("op", "other", "expected"), [("Sub", False, False), ("Sub", True, True), ("Add", False, True)]
)
def test_mean_of_a_normalization_is_no_pool(op: str, other: bool, expected: bool) -> None:
    g = GraphBuilder()
    x = g.input()
    mean = g.op("ReduceMean", [x], axes=[2, 3])
    g.output(g.op(op, [g.input("z") if other else x, mean]))
    graph = g.graph()
    assert is_average_pool(graph, graph.nodes[0]) is expected
