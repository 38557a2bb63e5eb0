"""Which nodes a kernel can take into its epilogue."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx_graphs import GraphBuilder, image

from qat_lib.analysis.chains import gate_of, joins, match_gate
from qat_lib.analysis.engine import predict_engine
from qat_lib.analysis.flow import Flow
from qat_lib.onnx_view.graph import OnnxGraph


def add_of(constant: list[int], *, known: bool = True) -> OnnxGraph:
    """An Add of ``x`` (4, 3) and a constant of ones."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 3] if known else None)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    ones = helper.make_tensor(
        "c", TensorProto.FLOAT, constant, [1.0] * int(onnx.helper.np.prod(constant))
    )
    node = helper.make_node("Add", ["x", "c"], ["y"], "add")
    model = helper.make_model(
        helper.make_graph([node], "net", [x], [y], [ones]),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    return OnnxGraph(model)


@pytest.mark.parametrize(
    ("constant", "known", "expected"),
    [([3], True, True), ([1], True, True), ([2, 1, 3], True, False), ([3], False, True)],
    ids=["bias", "scalar", "broadcasts to a higher rank", "rank unknown"],
)
def test_joins_takes_a_bias_that_keeps_the_rank(
    constant: list[int], known: bool, expected: bool
) -> None:
    graph = add_of(constant, known=known)
    assert joins(graph, graph.nodes[0]) is expected


def test_joins_goes_by_what_is_known_of_the_ranks() -> None:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, None)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 3])
    ones = helper.make_tensor("c", TensorProto.FLOAT, [3], [1.0] * 3)
    node = helper.make_node("Add", ["x", "c"], ["y"], "add")
    opsets = [helper.make_opsetid("", 17)]
    for given, made in ((x, y), (y, x)):
        given.name, made.name = "x", "y"
        proto = helper.make_graph([node], "net", [given], [made], [ones])
        graph = OnnxGraph(helper.make_model(proto, opset_imports=opsets, ir_version=8))
        assert joins(graph, graph.nodes[0])


def last_joins(build: Callable[[GraphBuilder, str], str]) -> bool:
    g = GraphBuilder()
    g.output(build(g, g.input(shape=(4, 3))))
    graph = g.graph()
    return joins(graph, graph.nodes[-1])


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda g, x: g.op("Mul", [x, x]), False),
        (lambda g, x: g.op("Mul", [g.const(2.0), x]), True),
        (lambda g, x: g.op("Sum", [x, g.const(2.0)]), False),
        (lambda g, x: g.op("Pow", [x, g.const(2.0)]), False),
        (lambda g, x: g.op("Gelu", [x]), True),
        (lambda g, x: g.op("Sigmoid", [x]), False),
        (lambda g, x: g.op("BatchNormalization", [x, *[g.const(np.ones(3))] * 4]), True),
        (
            lambda g, x: g.op(
                "BatchNormalization", [x, *[g.const(np.ones(3))] * 3, g.input("v", (3,))]
            ),
            False,
        ),
        (
            lambda g, x: g.op(
                "BatchNormalization", [x, g.input("s", (3,)), *[g.const(np.ones(3))] * 3]
            ),
            False,
        ),
    ],
    ids=[
        "square",
        "scale",
        "sum",
        "power",
        "gelu",
        "sigmoid",
        "constants",
        "given variance",
        "given scale",
    ],
)
def test_joins_needs_constants(build: Callable[[GraphBuilder, str], str], expected: bool) -> None:
    assert last_joins(build) is expected


def scaled(g: GraphBuilder, x: str, times: int) -> str:
    for _ in range(times):
        x = g.op("Mul", [x, g.const(0.5)])
    return x


GATES: dict[str, tuple[Callable[[GraphBuilder, str], list[str]], list[str]]] = {
    "silu": (lambda g, x: [g.op("Mul", [x, g.op("Sigmoid", [x])])], ["Sigmoid", "Mul"]),
    "two branches": (
        lambda g, x: [g.op("Mul", [g.op("Tanh", [x]), g.op("Exp", [g.op("Relu", [x])])])],
        ["Tanh", "Relu", "Exp", "Mul"],
    ),
    "seven operators and the product": (
        lambda g, x: [g.op("Mul", [x, scaled(g, x, 7)])],
        ["Mul"] * 8,
    ),
    "eight operators and the product": (lambda g, x: [g.op("Mul", [x, scaled(g, x, 8)])], []),
    "square": (lambda g, x: [g.op("Mul", [x, x])], []),
    "no gate": (lambda g, x: [g.op("Mul", [x, g.op("Softmax", [x])])], []),
    "sum": (lambda g, x: [g.op("Add", [x, g.op("Sigmoid", [x])])], []),
    "quotient": (lambda g, x: [g.op("Div", [x, g.op("Sigmoid", [x])])], []),
    "two products": (
        lambda g, x: [
            g.op("Mul", [g.op("Sigmoid", [x]), g.input("y")]),
            g.op("Mul", [g.op("Tanh", [x]), g.input("z")]),
        ],
        [],
    ),
    "a third reader": (
        lambda g, x: [g.op("Mul", [x, g.op("Sigmoid", [x])]), g.op("Tanh", [x])],
        [],
    ),
    "an output": (lambda g, x: [g.op("Mul", [x, g.op("Sigmoid", [x])]), x], []),
    "one reader": (lambda g, x: [g.op("Sigmoid", [x])], []),
    "a gate read twice": (
        lambda g, x: [g.op("Mul", [x, (gate := g.op("Sigmoid", [x]))]), g.op("Tanh", [gate])],
        [],
    ),
    "quantized": (lambda g, x: [g.op("Mul", [g.qdq(x), g.op("Sigmoid", [x])])], []),
    "quantized gate": (lambda g, x: [g.op("Mul", [x, g.op("Sigmoid", [g.qdq(x)])])], []),
}


@pytest.mark.parametrize("name", GATES)
def test_match_gate(name: str) -> None:
    build, expected = GATES[name]
    g = GraphBuilder()
    x = g.op("Softplus", [g.input()])
    g.output(*build(g, x))
    flow = Flow.of(g.graph())
    found = match_gate(flow, x)
    assert [node.op for node in found] == expected
    if expected:
        assert found[-1] is flow.graph.nodes[-1]


@pytest.mark.parametrize(
    "name", ["silu", "seven operators and the product", "square", "two branches"]
)
def test_gate_of_takes_the_reads_in_any_order(name: str) -> None:
    build, expected = GATES[name]
    g = GraphBuilder()
    x = g.op("Softplus", [g.input()])
    g.output(*build(g, x))
    flow = Flow.of(g.graph())
    found = gate_of(flow, flow.readers(x)[::-1])
    assert sorted(node.op for node in found) == sorted(expected)
    assert len({node.index for node in found}) == len(found)


def pooled_kernel(
    between: Callable[[GraphBuilder, str], str] = lambda g, x: x,
    *,
    outputs: int = 1,
    quantized: bool = True,
) -> list[str]:
    """Return the kernel of a convolution with ``between`` before a MaxPool.

    It is given as its operators.
    """
    g = GraphBuilder()
    y = between(g, image(g))
    y = g.op("MaxPool", [y], "pool/MaxPool", outputs, kernel_shape=[2, 2])
    g.output(g.conv(g.qdq(y), 16, 16, name="next") if quantized else y)
    if outputs == 2:
        g.output(next(node.output[1] for node in g.nodes if node.op_type == "MaxPool"))
    engine = predict_engine(g.graph())
    return [node.op for node in next(iter(engine.chains.values())).nodes]


def test_a_convolution_takes_the_max_pool_behind_it() -> None:
    assert pooled_kernel() == ["Conv", "MaxPool"]
    assert pooled_kernel(lambda g, x: g.op("Relu", [x])) == ["Conv", "Relu", "MaxPool"]


def test_convolution_takes_no_max_pool_with_indices() -> None:
    assert pooled_kernel(outputs=2) == ["Conv"]
    assert pooled_kernel(quantized=False) == ["Conv"]
    assert pooled_kernel(lambda g, x: g.qdq(x)) == ["Conv"]


def kernel_of(op: str, behind: str, *, outputs: int = 1, quantized: bool = True) -> list[str]:
    """Return a convolution kernel's operators, with "int8" for INT8 output."""
    g = GraphBuilder()
    weight = g.weight((16, 16, 1, 1), None, quantized=quantized)
    y = g.op(op, [g.qdq(g.input(shape=(1, 16, 16, 16))), weight])
    options = {"MaxPool": {"kernel_shape": [2, 2]}, "Transpose": {"perm": [0, 1, 3, 2]}}.get(
        behind, {}
    )
    parameters = [g.const(np.ones(16)) for _ in range(4)] if behind == "BatchNormalization" else []
    y = g.op(behind, [y, *parameters], outputs=outputs, **options)
    for index in range(1, outputs):
        g.nodes[-1].output[index] = ""
    g.output(g.conv(g.qdq(g.op("Relu", [y]) if parameters else y), 16, 16, name="next"))
    engine = predict_engine(g.graph())
    chain = next(iter(engine.chains.values()))
    return [node.op for node in chain.nodes] + ["int8"] * (
        chain.output_scale(engine.flow) is not None
    )


@pytest.mark.parametrize(
    ("op", "behind", "options", "expected"),
    [
        ("Conv", "MaxPool", {}, ["Conv", "MaxPool", "int8"]),
        ("Conv", "MaxPool", {"outputs": 2}, ["Conv", "MaxPool", "int8"]),
        ("Conv", "MaxPool", {"quantized": False}, ["Conv"]),
        ("Conv", "Relu", {"quantized": False}, ["Conv", "Relu"]),
        ("Conv", "Transpose", {}, ["Conv", "int8"]),
        ("ConvTranspose", "MaxPool", {}, ["ConvTranspose", "int8"]),
        ("ConvTranspose", "Relu", {}, ["ConvTranspose", "Relu", "int8"]),
        (
            "Conv",
            "BatchNormalization",
            {"outputs": 2},
            ["Conv", "BatchNormalization", "Relu", "int8"],
        ),
    ],
)
def test_kernels_of_convolutions(
    op: str, behind: str, options: dict[str, Any], expected: list[str]
) -> None:
    """Outputs that an operator has but leaves out are none."""
    assert kernel_of(op, behind, **options) == expected


def test_a_convolution_with_a_residual_takes_no_max_pool() -> None:
    residual = pooled_kernel(lambda g, x: g.op("Add", [x, g.qdq(g.input("r", (1, 16, 16, 16)))]))
    assert residual == ["Conv", "Add"]
