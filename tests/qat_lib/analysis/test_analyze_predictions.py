"""Predictions about layers, each beside its nearest graph with another prediction."""

from __future__ import annotations

import numpy as np
import pytest
from onnx_graphs import GraphBuilder, end, image

from qat_lib.analysis import FusionReport, analyze_graph
from qat_lib.errors import ConfigError


def report(g: GraphBuilder) -> FusionReport:
    return analyze_graph(g.graph())


def codes(g: GraphBuilder) -> set[str]:
    return {finding.code for finding in report(g).findings if not finding.code.startswith("H")}


def computed_weight(*, constant: bool) -> GraphBuilder:
    g = GraphBuilder()
    x = g.qdq(g.input())
    shape = (16, 16, 3, 3)
    weight = g.const(np.ones(shape)) if constant else g.input("w", shape)
    g.output(g.op("Conv", [x, g.qdq(weight, 0.02)], "quant_conv/Conv", pads=[1] * 4))
    return g


def test_weighted_computed_weight_is_not_int8() -> None:
    assert report(computed_weight(constant=False)).layers[0].precision == "mixed"
    assert codes(computed_weight(constant=False)) == {"V10"}
    assert report(computed_weight(constant=True)).layers[0].precision == "int8"
    assert codes(computed_weight(constant=True)) == set()


def clipped(bound: float, scale: float) -> GraphBuilder:
    """A quantized image that is clipped in front of a convolution."""
    g = GraphBuilder()
    x = g.op("Clip", [g.qdq(g.input(), scale), g.const(0.0), g.const(bound)], "clip/Clip")
    g.output(g.conv(x, 16, 16))
    return g


@pytest.mark.parametrize(
    ("bound", "scale", "precision"),
    [(6.0, 0.1, "int8"), (6.0, 0.11, "mixed"), (6.0, 0.04, "int8"), (6.1, 0.1, "int8")],
)
def test_propagation_clip_keeps_the_grid(bound: float, scale: float, precision: str) -> None:
    assert report(clipped(bound, scale)).layers[0].precision == precision


def depthwise_with_silu(group: int) -> GraphBuilder:
    g = GraphBuilder()
    x = g.conv(g.qdq(g.input(shape=(1, 32, 16, 16))), 32, 32, group=group, name="dw")
    y = g.op("Mul", [x, g.op("Sigmoid", [x])], "silu/Mul")
    g.output(g.conv(g.qdq(y), 32, 32, 1, name="project"))
    return g


def test_epilogue_depthwise_silu_writes_float() -> None:
    assert codes(depthwise_with_silu(32)) == {"V13"}
    assert report(depthwise_with_silu(32)).layers[0].writes == "float"
    assert codes(depthwise_with_silu(1)) == set()
    assert report(depthwise_with_silu(1)).layers[0].writes == "int8"


def without_zero_point(*, quantizer: bool, dequantizer: bool) -> GraphBuilder:
    g = GraphBuilder()
    x, scale, zero = g.input(), g.const(0.1), g.const(0, np.int8)
    q = g.op("QuantizeLinear", [x, scale] + ([] if quantizer else [zero]), "q/QuantizeLinear")
    dq = [q, scale] + ([] if dequantizer else [zero])
    g.output(g.conv(g.op("DequantizeLinear", dq, "q/DequantizeLinear"), 16, 16))
    return g


@pytest.mark.parametrize("dequantizer", [True, False])
def test_scales_without_zero_point_are_no_requantization(dequantizer: bool) -> None:
    assert "V09" not in codes(without_zero_point(quantizer=True, dequantizer=dequantizer))
    assert codes(without_zero_point(quantizer=False, dequantizer=False)) == set()


def rejected(scale: float) -> GraphBuilder:
    g = GraphBuilder()
    g.output(g.conv(g.qdq(g.input(), scale), 16, 16))
    return g


@pytest.mark.parametrize("scale", [0.0, -0.1, float("nan"), float("inf"), 1e-40])
def test_weighted_rejected_layer_is_not_int8(scale: float) -> None:
    assert report(rejected(scale)).int8_layers == 0
    assert "V01" in codes(rejected(scale))
    assert report(rejected(0.1)).int8_layers == 1


def unsigned_activation() -> GraphBuilder:
    g = GraphBuilder()
    x, scale, zero = g.input(), g.const(0.1), g.const(0, np.uint8)
    q = g.op("QuantizeLinear", [x, scale, zero], "q/QuantizeLinear")
    g.output(g.conv(g.op("DequantizeLinear", [q, scale, zero], "q/DequantizeLinear"), 16, 16))
    return g


def test_unsigned_layer_follows_the_target() -> None:
    graph = unsigned_activation().graph()
    refused = analyze_graph(graph)
    assert (refused.int8_layers, refused.target, refused.target_note) == (0, "tensorrt", "")
    assert "V03" in [found.code for found in refused.findings]
    for target in ("openvino", "onnxruntime"):
        taken = analyze_graph(graph, target=target)
        assert (taken.int8_layers, taken.target, taken.count("error")) == (1, target, 0)


@pytest.mark.parametrize("recorded", ["tensorrt", "openvino", "onnxruntime", "another", None])
def test_recorded_target_is_the_default(recorded: str | None) -> None:
    graph = unsigned_activation().graph()
    graph.target = recorded
    found = analyze_graph(graph)
    unsigned = recorded in ("openvino", "onnxruntime")
    assert (found.target, found.int8_layers) == ((recorded, 1) if unsigned else ("tensorrt", 0))
    asked = analyze_graph(graph, target="tensorrt")
    assert (asked.int8_layers, asked.exported_for) == (0, recorded)
    if unsigned:
        assert f"exported for {recorded}" in asked.target_note


def test_unknown_target_is_refused() -> None:
    with pytest.raises(ConfigError, match="'tpu'"):
        analyze_graph(unsigned_activation().graph(), target="tpu")  # type: ignore[arg-type]


def test_rejected_layer_stays_float_with_uint8() -> None:
    assert analyze_graph(rejected(-0.1).graph(), target="openvino").int8_layers == 0


def downsample(*, shortcut_first: bool, swapped: bool) -> GraphBuilder:
    """A block of two branches that end in convolutions.

    The main branch has two, the other one.
    """
    g = GraphBuilder()
    x = g.qdq(image(g))

    def shortcut() -> str:
        return g.conv(x, 16, 16, 1, name="shortcut")

    def main() -> str:
        return g.conv(g.qdq(g.op("Relu", [g.conv(x, 16, 16, name="c1")])), 16, 16, name="c2")

    branches = {f.__name__: f() for f in ((shortcut, main) if shortcut_first else (main, shortcut))}
    operands = [branches["main"], branches["shortcut"]]
    added = g.op("Add", operands[::-1] if swapped else operands, "add/Add")
    return end(g, g.op("Relu", [added]))


@pytest.mark.parametrize("shortcut_first", [True, False])
@pytest.mark.parametrize("swapped", [True, False])
def test_residual_add_fuses_whatever_the_order(shortcut_first: bool, swapped: bool) -> None:
    found = report(downsample(shortcut_first=shortcut_first, swapped=swapped))
    assert [add.fused_into for add in found.adds] == ["quant_shortcut/Conv"]


def pooled(*, float_reader: bool = False, pad: bool = False) -> GraphBuilder:
    """A stem: convolution, ReLU, MaxPool."""
    g = GraphBuilder()
    x = g.op("Relu", [g.conv(g.qdq(g.input()), 16, 16, name="stem")], "relu/Relu")
    if pad:
        x = g.op("Pad", [x, g.const([0, 0, 1, 1, 0, 0, 1, 1], np.int64)], "pad/Pad")
    x = g.op("MaxPool", [x], "pool/MaxPool", kernel_shape=[2, 2])
    g.output(g.conv(g.qdq(x), 16, 16, name="next"))
    if float_reader:
        g.output(g.op("Tanh", [x], "tanh/Tanh"))
    return g


def test_engine_convolution_takes_the_pool() -> None:
    names = [kernel.name for kernel in report(pooled()).engine]
    assert "quant_stem/Conv + relu/Relu + pool/MaxPool" in names
    assert report(pooled()).summary()["kernels"] == {"quantize": 1}
    assert [pool.precision for pool in report(pooled()).pools] == ["int8"]


@pytest.mark.parametrize("change", ["float_reader", "pad"])
def test_engine_pool_stays_alone(change: str) -> None:
    names = [kernel.name for kernel in report(pooled(**{change: True})).engine]
    assert "pool/MaxPool" in names
