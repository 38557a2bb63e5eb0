"""The engine report: layer, Add, pool and kernel verdicts; finding order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx_graphs import GraphBuilder

from qat_lib.analysis import FusionReport, analyze_graph, analyze_onnx
from qat_lib.analysis.analyze import kernel_name
from qat_lib.analysis.engine import predict_engine
from qat_lib.analysis.kernels import Kernel
from qat_lib.errors import ExportError


def network() -> GraphBuilder:
    """Two layers of 3:1 multiplications, two Adds, pools, and a transpose.

    One Add is inside of a kernel and one beside.
    """
    g = GraphBuilder()
    x = g.qdq(
        g.op("Transpose", [g.input(shape=(1, 8, 8, 16))], "flip/Transpose", perm=[0, 3, 1, 2])
    )
    y = g.op("Add", [g.conv(x, 16, 16, 1, name="first"), x], "inner/Add")
    z = g.qdq(g.op("MaxPool", [g.qdq(y)], "max/MaxPool", kernel_shape=[2, 2], strides=[2, 2]), 0.1)
    mean = g.op("ReduceMean", [g.op("Exp", [z], "exp/Exp")], "mean/ReduceMean", axes=[1])
    last = g.conv(z, 16, 16, 1, name="second", quantized=False)
    total = g.op("Add", [g.op("Softmax", [last]), mean], "outer/Add")
    g.output(g.op("GlobalAveragePool", [total], "average/GlobalAveragePool"))
    return g


@pytest.fixture(scope="module")
def report() -> FusionReport:
    return analyze_graph(network().graph(), model="file.onnx")


def test_layers(report: FusionReport) -> None:
    found = [
        (v.name, v.keras_layer, v.op_type, v.precision, v.writes, v.float_type)
        for v in report.layers
    ]
    assert found == [
        ("quant_first/Conv", "first", "Conv", "int8", "int8", "float32"),
        ("second/Conv", "second", "Conv", "mixed", "float", "float32"),
    ]
    assert [v.macs for v in report.layers] == [16 * 16 * 64, 16 * 16 * 16]
    assert [v.macs_share for v in report.layers] == [0.8, 0.2]
    assert [v.kernel for v in report.layers] == ["quant_first/Conv + inner/Add", "second/Conv"]
    assert report.model == "file.onnx"


def test_adds(report: FusionReport) -> None:
    assert [(v.name, v.keras_layer, v.fused_into, v.precision, v.rule) for v in report.adds] == [
        ("inner/Add", "inner", "quant_first/Conv", "int8", "F1"),
        ("outer/Add", "outer", None, "float", "F6"),
    ]


def test_pools(report: FusionReport) -> None:
    assert [(v.name, v.op_type, v.precision) for v in report.pools] == [
        ("max/MaxPool", "MaxPool", "int8"),
        ("average/GlobalAveragePool", "GlobalAveragePool", "float"),
    ]


def test_kernels_that_stand_alone(report: FusionReport) -> None:
    found = [(v.kind, v.detail, v.keras_layer, v.reads, v.writes) for v in report.kernels]
    assert ("reformat", "transpose", "flip", "int8", "int8") in found
    assert ("elementwise", "", "exp", "float", "float") in found
    assert all(v in report.engine for v in report.kernels)
    assert {v.kind for v in report.engine} >= {"weighted", "pool", "other"}
    assert {v.kind for v in report.kernels} <= {"reformat", "requantize", "elementwise"}


def test_findings_come_in_the_order_of_the_graph(report: FusionReport) -> None:
    place = {node.name: node.index for node in network().graph().nodes}
    places = [place.get(finding.node, -1) for finding in report.findings]
    assert places == sorted(places)
    assert len(set(places)) > 2


def test_a_finding_about_a_tensor_comes_first() -> None:
    g = GraphBuilder()
    x = g.input("image")
    y = g.op("Softmax", [g.conv(x, 16, 16, name="float", quantized=False)])
    g.output(y, *(g.conv(g.qdq(x, scale), 16, 16, name=f"c{scale}") for scale in (0.5, 0.25)))
    assert analyze_graph(g.graph()).findings[0].node == "image"


def test_shares_of_no_work_are_zero() -> None:
    g = GraphBuilder()
    g.output(g.op("MatMul", [g.op("Foreign", [g.input()]), g.op("Foreign", [g.input("y")])]))
    found = analyze_graph(g.graph())
    assert [(layer.macs, layer.macs_share) for layer in found.layers] == [(0, 0.0)]


def test_layer_type_is_output_type() -> None:
    for dtype, name in ((np.float16, "float16"), (np.float32, "float32")):
        g = GraphBuilder(dtype=dtype)
        g.output(g.op("MatMul", [g.input(shape=(4, 16)), g.const(np.ones((16, 8)))]))
        assert analyze_graph(g.graph()).layers[0].float_type == name
    g = GraphBuilder(dtype=np.float16)
    g.output(g.op("MatMul", [g.op("Foreign", [g.input()]), g.op("Foreign", [g.input("y")])]))
    assert analyze_graph(g.graph()).layers[0].float_type == "float32"


@pytest.mark.parametrize(
    ("axes", "op", "expected"),
    [
        ([2, 3], "ReduceMean", 1),
        ([1], "ReduceMean", 0),
        (None, "GlobalMaxPool", 1),
        (None, "Softmax", 0),
    ],
)
def test_a_mean_over_the_image_is_a_pool(axes: Any, op: str, expected: int) -> None:
    g = GraphBuilder()
    g.output(g.op(op, [g.input()], **({} if axes is None else {"axes": axes})))
    assert len(analyze_graph(g.graph()).pools) == expected


def test_kernel_name() -> None:
    nodes = predict_engine(network().graph()).graph.nodes
    kernel = Kernel(kind="other", nodes=tuple(nodes[:2]), reads="float", writes="float", name="own")
    assert kernel_name(kernel) == " + ".join(node.name for node in nodes[:2])
    assert kernel_name(Kernel(kind="reformat", reads="float", writes="int8", name="own")) == "own"


def test_a_conversion_is_named_by_its_quantizer() -> None:
    g = GraphBuilder()
    g.output(g.conv(g.qdq(g.input(), name="x_quantizer"), 16, 16))
    (found,) = analyze_graph(g.graph()).kernels
    assert (found.name, found.keras_layer, found.detail) == (
        "x_quantizer/QuantizeLinear",
        "x",
        "quantize",
    )


def test_analyze_onnx_takes_version_refuses_zero_scales(tmp_path: Path) -> None:
    path = network().save(tmp_path / "model.onnx")
    assert analyze_onnx(path).model == str(path)
    assert not any(finding.rule == "P17" for finding in analyze_onnx(path).findings)
    assert any(finding.rule == "P17" for finding in analyze_onnx(path, tensorrt=8).findings)
    g = GraphBuilder()
    g.output(g.op("Tanh", [g.qdq(g.qdq(g.input()), 0.0, "bad")]))
    with pytest.raises(
        ExportError, match=r"node 'bad/QuantizeLinear': 1 of 1 scales are unusable \(1 zero\)"
    ):
        analyze_onnx(g.save(tmp_path / "zero.onnx"))
