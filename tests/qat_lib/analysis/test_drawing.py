"""The drawing of an engine: boxes, edges, and a finding's box."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx_graphs import GraphBuilder

from qat_lib.analysis import CATALOG, analyze_graph
from qat_lib.analysis.drawing import Drawing, draw
from qat_lib.analysis.engine import predict_engine


def drawing(g: GraphBuilder) -> Drawing:
    return draw(predict_engine(g.graph()))


def block() -> GraphBuilder:
    """An INT8 convolution with Relu, two readers and two inputs.

    It is read in INT8 and in floating point.
    """
    g = GraphBuilder()
    x, side = g.input("x", (1, 16, 8, 8)), g.input("side", ("n", 16, 8, 8))
    y = g.op("Relu", [g.conv(g.qdq(x, name="x_quantizer"), 16, 16, name="first")], "relu/Relu")
    z = g.conv(g.qdq(y, 0.25, name="relu_quantizer"), 16, 4, name="second")
    g.output(g.op("Mul", [y, side], "mul/Mul"), z)
    return g


def test_boxes() -> None:
    g = block()
    found = [
        (b.name, b.op, b.keras_layer, b.precision, b.writes_float, b.kernel, b.shape)
        for b in drawing(g).boxes
    ]
    ends = [output.name for output in g.outputs]
    assert found == [
        ("x", "Input", "x", "", False, -1, "1 x 16 x 8 x 8"),
        ("side", "Input", "side", "", False, -1, "n x 16 x 8 x 8"),
        ("quant_first/Conv", "Conv", "first", "int8", False, 0, "1 x 16 x 8 x 8"),
        ("relu/Relu", "Relu", "relu", "int8", True, 0, "1 x 16 x 8 x 8"),
        ("quant_second/Conv", "Conv", "second", "int8", True, 1, "1 x 4 x 8 x 8"),
        ("mul/Mul", "Mul", "mul", "float32", False, 2, "n x 16 x 8 x 8"),
        (ends[0], "Output", ends[0], "", False, -1, "n x 16 x 8 x 8"),
        (ends[1], "Output", ends[1], "", False, -1, "1 x 4 x 8 x 8"),
    ]


def test_edges_and_anchors() -> None:
    found = drawing(block())
    names = [box.name for box in found.boxes]
    edges = [
        (
            names[e.source],
            names[e.target],
            None if e.scale is None else round(e.scale, 4),
            e.quantizer,
        )
        for e in found.edges
    ]
    assert edges[:5] == [
        ("x", "quant_first/Conv", 0.1, "x_quantizer/QuantizeLinear"),
        ("quant_first/Conv", "relu/Relu", None, ""),
        ("relu/Relu", "quant_second/Conv", 0.25, "relu_quantizer/QuantizeLinear"),
        ("relu/Relu", "mul/Mul", None, ""),
        ("side", "mul/Mul", None, ""),
    ]
    assert [edge[0] for edge in edges[5:]] == ["mul/Mul", "quant_second/Conv"]
    assert [edge[2:] for edge in edges[5:]] == [(None, "")] * 2
    assert names[found.anchors["relu_quantizer/QuantizeLinear"]] == "relu/Relu"
    assert names[found.anchors["x_quantizer/DequantizeLinear"]] == "x"
    assert names[found.anchors["first_weight/DequantizeLinear"]] == "quant_first/Conv"
    assert names[found.anchors["relu"]] == "relu/Relu"


@pytest.mark.parametrize(
    ("node", "layer", "expected"),
    [
        ("relu/Relu", "", 3),
        ("relu/Relu", "second", 3),
        ("nowhere", "second", 4),
        ("nowhere", "nothing", -1),
    ],
)
def test_box_of_a_finding(node: str, layer: str, expected: int) -> None:
    finding = CATALOG["V11"].at(node, message="What.", advice="Do.", layer=layer)
    assert drawing(block()).box_of(finding) == expected


def test_a_layer_is_anchored_at_its_first_operator() -> None:
    g = GraphBuilder()
    g.output(g.op("Exp", [g.op("Tanh", [g.input()], "layer/Tanh")], "layer/Exp"))
    assert drawing(g).anchors["layer"] == 1


def test_outputs_in_order_with_their_scales() -> None:
    """A constant output has no box; an input as output has two.

    Nothing writes a constant output.
    """
    g = GraphBuilder()
    x = g.input("x")
    y = g.op("Tanh", [x], "tanh/Tanh")
    end = g.qdq(y, 0.5, name="tanh_quantizer")
    g.output(g.const(np.ones(3), name="constant"), end, x, y)
    found = drawing(g)
    names = [box.name for box in found.boxes]
    assert names == ["x", "tanh/Tanh", end, "x", y]
    edges = [(edge.source, edge.target, edge.scale, edge.quantizer) for edge in found.edges]
    assert edges == [
        (0, 1, None, ""),
        (1, 2, 0.5, "tanh_quantizer/QuantizeLinear"),
        (0, 3, None, ""),
        (1, 4, None, ""),
    ]


Build = Callable[[GraphBuilder, str], str]


@pytest.mark.parametrize(
    ("build", "dtype", "precision"),
    [
        (lambda g, x: g.op("Tanh", [x]), np.float32, "float32"),
        (lambda g, x: g.op("Tanh", [x]), np.float16, "float16"),
        (lambda g, x: g.op("Foreign", [x]), np.float16, "float32"),
        (lambda g, x: g.op("Exp", [g.op("Tanh", [x])]), np.float16, "float16"),
        (lambda g, x: g.op("MaxPool", [g.qdq(x)], kernel_shape=[1, 1]), np.float32, "int8"),
        (lambda g, x: g.conv(g.qdq(x), 16, 16, quantized=False), np.float32, "mixed"),
        (lambda g, x: g.conv(x, 16, 16, quantized=False), np.float32, "float32"),
    ],
)
def test_precision_of_a_box(build: Build, dtype: Any, precision: str) -> None:
    g = GraphBuilder(dtype=dtype)
    g.output(build(g, g.input()))
    boxes = [box for box in drawing(g).boxes if box.op not in ("Input", "Output")]
    assert {box.precision for box in boxes} == {precision}


@pytest.mark.parametrize(
    ("shape", "text"),
    [((1, "n", 3), "1 x n x 3"), ((1, None, 3), "1 x ? x 3"), ((), ""), (None, "?")],
)
def test_shape_of_a_box(shape: Any, text: str) -> None:
    g = GraphBuilder()
    g.output(g.op("Tanh", [g.input("x", shape)]))
    assert drawing(g).boxes[0].shape == text


def test_box_kernel_is_number_in_report() -> None:
    report = analyze_graph(block().graph())
    for box in report.drawing.boxes:
        if box.kernel >= 0:
            assert box.name in report.engine[box.kernel].name.split(" + ")


def test_a_box_of_several_outputs_shows_the_first() -> None:
    g = GraphBuilder()
    x = g.input()
    parts = g.op("Split", [x, g.const([4, 12], np.int64)], "split", outputs=2, axis=1)
    pooled = g.op("MaxPool", [parts], "pool", outputs=2, kernel_shape=[1, 1])
    g.output(pooled, *(node.output[1] for node in g.nodes))
    found = {box.name: (box.shape, box.precision) for box in drawing(g).boxes}
    assert found["split"] == found["pool"] == ("1 x 4 x 8 x 8", "float32")
