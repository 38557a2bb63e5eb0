"""Each parser rule with the rule, severity and number of its findings."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx_graphs import GraphBuilder
from parser_graphs import one_quantizer, quantized_output, weight_pair

from qat_lib.analysis.findings import Finding
from qat_lib.analysis.rules.parser import check_parser_rules


def findings(g: GraphBuilder, **options: Any) -> list[Finding]:
    return check_parser_rules(g.graph(), **options)


def rules(g: GraphBuilder, **options: Any) -> list[tuple[str, str, str]]:
    return [(finding.code, finding.rule, finding.severity) for finding in findings(g, **options)]


def test_a_canonical_graph_has_no_findings() -> None:
    g = GraphBuilder()
    y = g.conv(g.qdq(g.input()), 16, 8)
    g.output(y)
    assert findings(g) == []


def test_quantizer_without_a_scale_is_named() -> None:
    g = GraphBuilder()
    g.output(g.op("QuantizeLinear", [g.input()], "bad_quantizer/QuantizeLinear"))
    found = findings(g)
    assert next((f.code, f.rule, f.keras_layer) for f in found) == ("V01", "P1", "bad")


@pytest.mark.parametrize("scale", [0.0, -0.1, float("nan"), float("inf")])
def test_scales_are_positive_and_finite(scale: float) -> None:
    assert rules(one_quantizer(scale)) == [("V01", "P2", "error")] * 2


def test_one_dead_channel_is_enough() -> None:
    assert rules(weight_pair([0.1, 0.0, 0.1, 0.1], axis=0)) == [("V01", "P2", "error")]
    assert rules(weight_pair([0.1, 1e-12, 0.1, 0.1], axis=0)) == []


def test_scale_types() -> None:
    assert rules(one_quantizer(1.0, scale_dtype=np.float64)) == [("V01", "P2", "error")] * 2
    assert rules(one_quantizer(1.0, scale_dtype=np.float32)) == []


def test_computed_scale_is_a_warning() -> None:
    g = GraphBuilder()
    x = g.input(shape=(4,))
    scale = g.op("ReduceMax", [x], keepdims=0)
    g.output(
        g.op("DequantizeLinear", [g.op("QuantizeLinear", [x, scale, g.const(0, np.int8)]), scale])
    )
    assert rules(g) == [("V01", "P3", "warning")] * 2


def test_scale_constant_through_cast_counts_as_constant() -> None:
    g = GraphBuilder()
    x = g.input()
    scale = g.op("Cast", [g.op("Identity", [g.const(0.0, np.float16)])], to=1)
    zero = g.const(0, np.int8)
    g.output(g.op("DequantizeLinear", [g.op("QuantizeLinear", [x, scale, zero]), scale, zero]))
    assert rules(g) == [("V01", "P2", "error")] * 2


def test_zero_point_is_zero() -> None:
    assert rules(one_quantizer(zero=1)) == [("V02", "P4", "error")] * 2
    assert rules(one_quantizer(zero=0)) == []


def test_zero_points_match_scales() -> None:
    assert ("V02", "P7", "error") in rules(one_quantizer(zero=[0, 0]))
    assert rules(one_quantizer(scale=[0.1], zero=0)) == []


@pytest.mark.parametrize(("dtype", "rule"), [(np.uint8, "P5"), (np.int32, "P8"), (np.int16, "P8")])
def test_quantized_type_is_int8(dtype: Any, rule: str) -> None:
    g = GraphBuilder(opset=21)
    x = g.input(shape=(2, 4), dtype=dtype)
    g.output(g.op("DequantizeLinear", [x, g.const(0.1), g.const(0, dtype)]))
    assert rules(g) == [("V03", rule, "error")]


def test_dequantized_uint8_without_zero_point_is_found() -> None:
    g = GraphBuilder()
    g.output(g.op("DequantizeLinear", [g.input(dtype=np.uint8), g.const(0.1)]))
    assert rules(g) == [("V03", "P5", "error")]


def test_float8_is_legal_but_not_predicted() -> None:
    assert rules(one_quantizer(dtype=ml_dtypes.float8_e4m3fn)) == [("V27", "P5", "info")] * 2


def test_absent_zero_point_reads_differently() -> None:
    assert rules(one_quantizer(zero=None))[0] == ("V03", "P6", "warning")
    g = GraphBuilder()
    g.output(g.op("DequantizeLinear", [g.input(dtype=np.int8), g.const(0.1)]))
    assert rules(g) == []


def test_scale_count_is_the_axis_length() -> None:
    assert rules(weight_pair([0.1] * 4, axis=1)) == [("V04", "P9", "error")]
    assert rules(weight_pair([0.1] * 4, axis=5)) == [("V04", "P9", "error")]
    assert rules(weight_pair([0.1] * 3, axis=1)) == []
    assert rules(weight_pair([0.1] * 3, axis=-1)) == []


def test_axis_is_written_for_per_channel_scales() -> None:
    assert rules(weight_pair([0.1] * 3)) == [("V04", "P10", "error")]
    assert rules(weight_pair([0.1])) == []


def test_activation_has_one_scale() -> None:
    assert rules(one_quantizer([0.1] * 4, [0] * 4, axis=1)) == [("V04", "P12", "error")] * 2


def test_block_scales_are_not_for_int8() -> None:
    assert rules(weight_pair(np.full((4, 3), 0.1), axis=0)) == [("V04", "P13", "error")]


def test_per_channel_needs_opset_13() -> None:
    assert ("V06", "P14", "error") in rules(weight_pair([0.1] * 4, opset=12, axis=0))
    assert rules(weight_pair([0.1] * 4, opset=13, axis=0)) == []


def test_half_scale_on_a_float_tensor() -> None:
    g = GraphBuilder(opset=19)
    x = g.input()
    q = g.op("QuantizeLinear", [x, g.const(0.1, np.float16), g.const(0, np.int8)])
    g.output(g.dq(q))
    assert rules(g) == [("V06", "P14", "error")]
    same = GraphBuilder(opset=19, dtype=np.float16)
    same.output(same.qdq(same.input()))
    assert rules(same) == []


@pytest.mark.parametrize("op", ["QLinearConv", "QLinearMatMul", "ConvInteger", "MatMulInteger"])
def test_integer_operators_are_refused(op: str) -> None:
    g = GraphBuilder()
    g.output(g.op(op, [g.input(dtype=np.uint8)] * 8))
    assert ("V05", "P15", "error") in rules(g)


def test_quantizers_of_another_domain_are_refused() -> None:
    g = GraphBuilder()
    g.output(
        g.op(
            "QuantizeLinear",
            [g.input(), g.const(0.1), g.const(0, np.uint16)],
            domain="com.microsoft",
        )
    )
    assert rules(g) == [("V05", "P15", "error")]


def test_int8_weights_need_tensorrt_10() -> None:
    g = GraphBuilder()
    g.output(g.conv(g.qdq(g.input()), 16, 8))
    assert rules(g, tensorrt=8) == [("V07", "P17", "error")]
    qdq = GraphBuilder()
    weight = qdq.dq(qdq.q(qdq.const(np.ones((8, 16, 1, 1)))))
    qdq.output(qdq.op("Conv", [qdq.qdq(qdq.input()), weight], "quant_conv/Conv"))
    assert rules(qdq, tensorrt=8) == []


def test_kernel_shape_agrees_with_the_weight() -> None:
    g = GraphBuilder()
    g.output(g.conv(g.qdq(g.input()), 16, 8, kernel=3, kernel_shape=[1, 1]))
    assert rules(g) == [("V07", "P18", "error")]


def batch_norm(constant: bool) -> GraphBuilder:
    g = GraphBuilder()
    x = g.input(shape=(1, 4, 8, 8))
    parameters = [g.const(np.ones(4)) for _ in range(4)]
    if not constant:
        parameters[0] = g.input("gamma", (4,))
    g.output(g.op("BatchNormalization", [x, *parameters], "bn/BatchNormalization"))
    return g


def test_batch_norm_parameters_are_constants() -> None:
    assert rules(batch_norm(constant=False)) == [("V07", "P19", "warning")]
    assert rules(batch_norm(constant=True)) == []


def test_quantizer_is_no_graph_output() -> None:
    assert rules(quantized_output(dequantize=False)) == [("V07", "L", "error")]
    assert rules(quantized_output(dequantize=True)) == []
    copied = GraphBuilder()
    copied.output(copied.op("Identity", [copied.op("Identity", [copied.q(copied.input())])]))
    assert rules(copied) == [("V07", "L", "error")]
