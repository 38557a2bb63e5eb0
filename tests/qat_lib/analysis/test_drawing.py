"""The drawing of an engine: a box for each kernel, edges, and the box of each name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx_graphs import GraphBuilder

from qat_lib.analysis.drawing import draw
from qat_lib.analysis.engine import predict_engine
from qat_lib.pages.graph import GraphNode, GraphView


def drawing(g: GraphBuilder) -> GraphView:
    return draw(predict_engine(g.graph()))


def operators(g: GraphBuilder) -> list[GraphNode]:
    return [node for node in drawing(g).nodes if node.kind not in ("Input", "Output")]


def block() -> GraphBuilder:
    """An INT8 convolution with Relu, read in INT8 and in floating point, and two inputs."""
    g = GraphBuilder()
    x, side = g.input("x", (1, 16, 8, 8)), g.input("side", ("n", 16, 8, 8))
    y = g.op("Relu", [g.conv(g.qdq(x, name="x_quantizer"), 16, 16, name="first")], "relu/Relu")
    z = g.conv(g.qdq(y, 0.25, name="relu_quantizer"), 16, 4, name="second")
    g.output(g.op("Mul", [y, side], "mul/Mul"), z)
    return g


def test_draw_gives_a_box_for_each_kernel() -> None:
    g = block()
    ends = [output.name for output in g.outputs]
    assert [(node.title, node.kind, node.precision) for node in drawing(g).nodes] == [
        ("x", "Input", ""),
        ("side", "Input", ""),
        ("first", "Conv 3×3 + Relu", "int8"),
        ("second", "Conv 3×3", "int8"),
        ("mul", "Mul", "float"),
        (ends[0], "Output", ""),
        (ends[1], "Output", ""),
    ]
    first, second, _ = operators(g)
    assert first.names == ("quant_first/Conv", "relu/Relu")
    assert first.details[:3] == (
        "INT8, writes floating point",
        "output: 1 × 16 × 8 × 8",
        "kernel: quant_first/Conv + relu/Relu",
    )
    assert second.int8_weight
    assert second.details[3:] == ("multiply-accumulates: 20.0%", "weight: INT8, 4 ranges")


def test_draw_gives_edges_with_pairs_and_anchors() -> None:
    found = drawing(block())
    titles = [node.title for node in found.nodes]
    edges = [(titles[e.source], titles[e.target], e.quantized) for e in found.edges]
    assert edges[:4] == [
        ("x", "first", True),
        ("first", "second", True),
        ("first", "mul", False),
        ("side", "mul", False),
    ]
    assert [edge[0] for edge in edges[4:]] == ["mul", "second"]
    pairs = {node.title: node.output for node in found.nodes if node.output is not None}
    assert {title: pair.name for title, pair in pairs.items()} == {
        "x": "x_quantizer/QuantizeLinear",
        "first": "relu_quantizer/QuantizeLinear",
    }
    assert pairs["first"].amax == pytest.approx(0.25 * 127)
    for name, title in (
        ("relu_quantizer/QuantizeLinear", "first"),
        ("x_quantizer/DequantizeLinear", "x"),
        ("first_weight/DequantizeLinear", "first"),
        ("relu", "first"),
        ("quant_second/Conv", "second"),
    ):
        assert titles[found.anchors[name]] == title


def test_find_takes_the_first_known_name() -> None:
    found = drawing(block())
    assert found.find("relu/Relu", "second") == 2
    assert found.find("nowhere", "second") == 3
    assert found.find("nowhere", "nothing") is None


def test_a_layer_is_anchored_at_its_first_operator() -> None:
    g = GraphBuilder()
    g.output(g.op("Exp", [g.op("Softmax", [g.input()], "layer/Softmax")], "layer/Exp"))
    found = drawing(g)
    assert found.nodes[found.anchors["layer"]].names[0] == "layer/Softmax"


def test_boxes_are_in_topological_order() -> None:
    """An elementwise kernel may start before an operand that it reads later."""
    g = GraphBuilder()
    x = g.input("x")
    early = g.op("Exp", [x], "early/Exp")
    other = g.op("Softmax", [x], "other/Softmax")
    g.output(g.op("Mul", [early, other], "late/Mul"))
    assert [node.kind for node in operators(g)] == ["Softmax", "Exp + Mul"]
    assert all(edge.source < edge.target for edge in drawing(g).edges)


def test_outputs_are_in_order() -> None:
    """A constant output has no box, since nothing writes it; an input as output has two."""
    g = GraphBuilder()
    x = g.input("x")
    y = g.op("Tanh", [x], "tanh/Tanh")
    end = g.qdq(y, 0.5, name="tanh_quantizer")
    g.output(g.const(np.ones(3), name="constant"), end, x, y)
    found = drawing(g)
    assert [node.title for node in found.nodes] == ["x", "tanh", end, "x", y]
    assert [(edge.source, edge.target, edge.quantized) for edge in found.edges] == [
        (0, 1, False),
        (1, 2, True),
        (0, 3, False),
        (1, 4, False),
    ]


Build = Callable[[GraphBuilder, str], str]


@pytest.mark.parametrize(
    ("build", "dtype", "precision", "detail"),
    [
        (lambda g, x: g.op("Tanh", [x]), np.float32, "float", "float32"),
        (lambda g, x: g.op("Tanh", [x]), np.float16, "float", "float16"),
        (lambda g, x: g.op("Foreign", [x]), np.float16, "float", "float32"),
        (lambda g, x: g.op("Exp", [g.op("Tanh", [x])]), np.float16, "float", "float16"),
        (lambda g, x: g.op("Flatten", [x]), np.float32, "", "float32"),
        (lambda g, x: g.op("MaxPool", [g.qdq(x)], kernel_shape=[1, 1]), np.float32, "int8", "INT8"),
        (
            lambda g, x: g.conv(g.qdq(x), 16, 16, quantized=False),
            np.float32,
            "float",
            "float32: one operand is not quantized",
        ),
        (lambda g, x: g.conv(x, 16, 16, quantized=False), np.float32, "float", "float32"),
    ],
)
def test_precision_of_a_box(build: Build, dtype: Any, precision: str, detail: str) -> None:
    g = GraphBuilder(dtype=dtype)
    g.output(build(g, g.input()))
    assert [(node.precision, node.details[0]) for node in operators(g)] == [(precision, detail)]


@pytest.mark.parametrize(
    ("shape", "text"),
    [((1, "n", 3), "1 × n × 3"), ((1, None, 3), "1 × ? × 3"), ((), ""), (None, "?")],
)
def test_shape_of_a_box(shape: Any, text: str) -> None:
    g = GraphBuilder()
    g.output(g.op("Tanh", [g.input("x", shape)]))
    assert drawing(g).nodes[0].details == (f"shape: {text}",)


@pytest.mark.parametrize("scale", [float("nan"), float("inf")])
def test_pair_with_an_unusable_scale_has_no_range(scale: float) -> None:
    g = GraphBuilder()
    g.output(g.conv(g.qdq(g.input(), scale), 16, 16))
    pair = drawing(g).nodes[0].output
    assert pair is not None
    assert pair.range() == ""


def test_kind_names_strides_and_groups() -> None:
    g = GraphBuilder()
    x = g.op("MaxPool", [g.input()], kernel_shape=[3, 2], strides=[2, 2])
    g.output(g.op("MaxPool", [x], kernel_shape=[1, 1], strides=[1, 2]))
    assert [node.kind for node in operators(g)] == ["MaxPool 3×2 /2", "MaxPool 1×1 /1×2"]
