"""One Q or DQ at a time: each fault and its message."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx_graphs import GraphBuilder, set_type

from qat_lib.analysis.findings import Finding
from qat_lib.analysis.rules.pair import check_pair, is_legal
from qat_lib.onnx_view.graph import Node, OnnxGraph
from qat_lib.onnx_view.pairs import quantized_type, well_formed

Q, DQ = "QuantizeLinear", "DequantizeLinear"
Tensor = Callable[[GraphBuilder], str]


def constant(value: Any, dtype: Any = None) -> Tensor:
    return lambda g: g.const(value, dtype)


def given(name: str, shape: Any = (2, 4), dtype: Any = np.float32) -> Tensor:
    return lambda g: g.input(name, shape, dtype)


def foreign(tensor: Tensor) -> Tensor:
    """A constant of which nothing is known: a foreign operator makes it."""
    return lambda g: g.op("Foreign", [tensor(g)])


def absent(g: GraphBuilder) -> str:
    return ""


X, X8, W8 = given("x"), given("x", dtype=np.int8), constant(np.ones((2, 4)), np.int8)
SCALE, ZERO = constant(0.1), constant(0, np.int8)


def pair(
    op: str,
    data: Tensor = X,
    scale: Tensor = SCALE,
    zero: Tensor = ZERO,
    *,
    opset: int = 17,
    **attributes: Any,
) -> tuple[OnnxGraph, Node]:
    """Return a graph ending in one quantizer or dequantizer, and this node."""
    g = GraphBuilder(opset=opset)
    g.output(g.op(op, [data(g), scale(g), zero(g)], f"layer_quantizer/{op}", **attributes))
    graph = g.graph()
    return graph, graph.nodes[-1]


def said(found: Iterable[Finding]) -> list[tuple[str, str, str]]:
    return [(each.code, each.rule, each.message) for each in found]


def rules(graph: OnnxGraph, node: Node) -> list[str]:
    return [
        f"{each.code} {each.rule} {each.severity} {each.confidence}"
        for each in check_pair(graph, node)
    ]


@pytest.mark.parametrize("data", [X8, W8])
def test_a_pair_as_tensorrt_wants_it(data: Tensor) -> None:
    assert rules(*pair(Q)) == []
    assert rules(*pair(DQ, data)) == []
    assert is_legal(*pair(Q))


@pytest.mark.parametrize(
    ("inputs", "outputs", "expected"),
    [
        (["x", "scale"], ["y"], True),
        (["x"], ["y"], False),
        (["", "scale"], ["y"], False),
        (["x", "", "zero"], ["y"], False),
        (["x", "scale"], [], False),
        ([], ["y"], False),
    ],
)
def test_well_formed(inputs: list[str], outputs: list[str], expected: bool) -> None:
    g = GraphBuilder()
    g.input("x")
    g.const(0.1, name="scale")
    g.const(0, np.int8, "zero")
    g.nodes.append(helper.make_node(Q, inputs, outputs, "bad_quantizer/QuantizeLinear"))
    graph = g.graph()
    (node,) = graph.nodes
    assert well_formed(node) is expected
    found = [each for each in check_pair(graph, node) if each.rule == "P1"]
    assert len(found) == (not expected)
    assert all(
        each.message.startswith(f"QuantizeLinear has {len(inputs)} inputs;") for each in found
    )
    assert all(
        (each.code, each.severity, each.keras_layer) == ("V01", "error", "bad") for each in found
    )


@pytest.mark.parametrize(
    ("scale", "expected"),
    [
        (constant(0.1, np.float16), []),
        (constant(0.1, ml_dtypes.bfloat16), []),
        (
            constant(0.1, np.float64),
            ["the scale is float64; TensorRT takes float32, float16 and bfloat16."],
        ),
        (
            constant(1, np.int32),
            ["the scale is int32; TensorRT takes float32, float16 and bfloat16."],
        ),
        (
            constant(0.0),
            ["1 of 1 scales are unusable (1 zero): a scale is a positive, finite, normal number."],
        ),
        (
            constant(-1.0, np.float64),
            [
                "the scale is float64; TensorRT takes float32, float16 and bfloat16.",
                "1 of 1 scales are unusable (1 negative): a scale is a positive, finite, normal number.",
            ],
        ),
        (foreign(SCALE), []),
    ],
)
def test_scales(scale: Tensor, expected: list[str]) -> None:
    found = [each for each in said(list(check_pair(*pair(DQ, W8, scale)))) if each[1] == "P2"]
    assert [message for _, _, message in found] == expected
    assert {code for code, _, _ in found} <= {"V01"}


def test_a_computed_scale_says_nothing_more() -> None:
    assert rules(*pair(Q, scale=given("scale", ()))) == ["V01 P3 warning I"]


@pytest.mark.parametrize(
    ("zero", "sample"),
    [
        (constant(1, np.int8), "1"),
        (constant([0, 5], np.int8), "0, 5"),
        (constant([3, 1, 2, 1], np.int8), "1, 2, 3"),
        (constant([4, 3, 2, 1], np.int8), "1, 2, 3, ..."),
    ],
)
def test_zero_points_that_are_not_zero_are_listed(zero: Tensor, sample: str) -> None:
    found = [each for each in check_pair(*pair(Q, zero=zero)) if each.rule == "P4"]
    assert [each.message for each in found] == [
        f"the zero point is {sample}; TensorRT takes 0 only."
    ]
    assert found[0].code == "V02"


def test_a_computed_zero_point() -> None:
    (found,) = check_pair(*pair(Q, zero=given("zero", (), np.int8)))
    assert (found.code, found.rule) == ("V02", "P4")
    assert "computed in the graph" in found.message
    assert rules(*pair(Q, zero=foreign(ZERO))) == []


@pytest.mark.parametrize(
    ("scales", "zeros", "expected"),
    [
        (constant([0.1] * 4), constant([0] * 4, np.int8), ""),
        (constant([0.1] * 4), constant([0] * 3, np.int8), "there are 3 zero points and 4 scales."),
        (constant([0.1] * 4), constant(0, np.int8), "there are 1 zero points and 4 scales."),
        (constant([0.1]), constant(0, np.int8), ""),
        (constant(np.full((2, 2), 0.1)), constant([0] * 4, np.int8), ""),
        (foreign(SCALE), constant([0] * 4, np.int8), ""),
        (given("scale", ("n",)), constant([0] * 4, np.int8), ""),
    ],
)
def test_zero_points_match_scales(scales: Tensor, zeros: Tensor, expected: str) -> None:
    found = [each for each in check_pair(*pair(DQ, W8, scales, zeros, axis=1)) if each.rule == "P7"]
    assert [each.message for each in found] == ([expected] if expected else [])


@pytest.mark.parametrize(
    ("dtype", "op", "expected"),
    [
        (np.int8, Q, None),
        (np.uint8, Q, ("V03", "P5", "is UINT8: TensorRT refuses it (10.1) or silently takes")),
        (np.uint8, DQ, ("V03", "P5", "is UINT8: TensorRT refuses it.")),
        (np.int32, DQ, ("V03", "P8", "an INT32 tensor, usually a bias")),
        (np.int16, Q, ("V03", "P8", "the quantized type is int16; TensorRT takes INT8.")),
        (np.uint16, DQ, ("V03", "P8", "the quantized type is uint16; TensorRT takes INT8.")),
        (ml_dtypes.float8_e4m3fn, Q, ("V27", "P5", "quantized to float8e4m3fn: TensorRT has it")),
        (ml_dtypes.int4, DQ, ("V27", "P5", "quantized to int4: TensorRT has it")),
        (ml_dtypes.float8_e5m2, DQ, ("V03", "P8", "the quantized type is float8e5m2;")),
    ],
)
def test_quantized_types(dtype: Any, op: str, expected: tuple[str, str, str] | None) -> None:
    """Given by the zero point, or by a DQ's input without one."""
    data = X if op == Q else constant(np.ones((2, 4)), dtype)
    ways = [pair(op, data, zero=constant(0, dtype), opset=21)] + [
        pair(op, data, zero=absent, opset=21)
    ] * (op == DQ)
    for graph, node in ways:
        found = list(check_pair(graph, node))
        assert [(each.code, each.rule) for each in found] == ([expected[:2]] if expected else [])
        assert all(expected is not None and expected[2] in each.message for each in found)
        assert is_legal(graph, node) is (expected is None or expected[0] == "V27")
        assert is_legal(graph, node, allow_uint8=True) is (expected is None or expected[1] == "P5")
        assert quantized_type(graph, node) == np.dtype(dtype).name.replace("_", "")


def test_no_zero_point() -> None:
    assert rules(*pair(Q, zero=absent)) == ["V03 P6 warning D"]
    assert rules(*pair(Q, zero=absent, opset=21, output_dtype=TensorProto.INT8)) == []
    assert rules(*pair(Q, zero=absent, opset=21, output_dtype=TensorProto.UNDEFINED)) == [
        "V03 P6 warning D"
    ]
    assert rules(*pair(DQ, X8, zero=absent)) == []
    assert rules(*pair(DQ, foreign(W8), zero=absent)) == []
    assert quantized_type(*pair(Q, X8, zero=absent)) == ""
    assert quantized_type(*pair(DQ, foreign(W8))) == "int8"


@pytest.mark.parametrize(
    ("shape", "count", "axis", "expected"),
    [
        ((3, 4), 4, 1, ""),
        ((3, 4), 4, -1, ""),
        ((3, 4), 3, 0, ""),
        ((3, 4), 3, -2, ""),
        ((3, 4), 3, 1, "there are 3 scales and 4 channels along axis 1."),
        ((3, 4), 4, -2, "there are 4 scales and 3 channels along axis -2."),
        ((3, 4), 4, 2, "there are 4 scales and no axis 2 in a tensor of rank 2."),
        ((3, 4), 4, -3, "there are 4 scales and no axis -3 in a tensor of rank 2."),
        ((3, 4), 1, 7, ""),
    ],
)
def test_scales_of_a_weight_lie_along_its_axis(
    shape: Any, count: int, axis: int, expected: str
) -> None:
    weight, scales, zeros = (
        constant(np.ones(shape), np.int8),
        constant([0.1] * count),
        constant([0] * count, np.int8),
    )
    found = said(check_pair(*pair(DQ, weight, scales, zeros, axis=axis)))
    assert found == ([("V04", "P9", expected)] if expected else [])


FOUR, ZEROS = constant([0.1] * 4), constant([0] * 4, np.int8)


def test_scales_of_several_dimensions() -> None:
    graph, node = pair(
        DQ,
        W8,
        constant(np.full((2, 2), 0.1)),
        constant(np.zeros((2, 2)), np.int8),
        axis=0,
        opset=12,
    )
    (found,) = [each for each in check_pair(graph, node) if each.code == "V04"]
    assert (found.rule, found.severity) == ("P13", "error")
    assert "the scale has 2 dimensions" in found.message
    one = pair(DQ, W8, constant(np.full((1, 1), 0.1)), constant(np.zeros((1, 1)), np.int8), axis=0)
    assert rules(*one) == []


@pytest.mark.parametrize("dtype", [ml_dtypes.int4, ml_dtypes.float8_e4m3fn])
def test_other_types_have_scales_of_their_own(dtype: Any) -> None:
    weight, zeros = constant(np.ones((2, 4)), dtype), constant(np.zeros((2, 2)), dtype)
    found = pair(DQ, weight, constant(np.full((2, 2), 0.1)), zeros, axis=0, opset=21)
    assert rules(*found) == ["V27 P5 info D"]


@pytest.mark.parametrize(
    ("opset", "expected"), [(9, True), (10, True), (12, True), (13, False), (14, False)]
)
def test_channels_need_a_newer_operator_set(opset: int, expected: bool) -> None:
    found = said(check_pair(*pair(DQ, W8, FOUR, ZEROS, axis=1, opset=opset)))
    channels = ("V06", "P14", f"per-channel quantization needs opset 13; the file has {opset}.")
    assert (channels in found) is expected
    assert (
        ("V06", "P14", f"DequantizeLinear came with opset 10; the file has {opset}.") in found
    ) is (opset < 10)


def test_an_activation_has_one_scale() -> None:
    (found,) = check_pair(*pair(Q, X, FOUR, ZEROS, axis=1))
    assert (found.code, found.rule) == ("V04", "P12")
    assert "quantized with 4 scales" in found.message
    assert "the output of 'layer'" in found.advice


def test_per_channel_scales_need_an_axis() -> None:
    assert rules(*pair(DQ, W8, FOUR, ZEROS)) == ["V04 P10 error D"]
    assert rules(*pair(DQ, W8, foreign(FOUR), ZEROS)) == []
    assert rules(*pair(DQ, foreign(W8), FOUR, ZEROS, axis=7)) == []


@pytest.mark.parametrize(
    ("scale", "data", "expected"),
    [
        (np.float16, np.float32, True),
        (ml_dtypes.bfloat16, np.float32, True),
        (ml_dtypes.bfloat16, np.float16, True),
        (np.float16, np.float16, False),
        (np.float32, np.float16, False),
    ],
)
def test_a_half_scale_needs_a_half_tensor(scale: Any, data: Any, expected: bool) -> None:
    found = list(check_pair(*pair(Q, given("x", dtype=data), constant(0.1, scale), opset=19)))
    assert [each.code for each in found] == ["V06"] * expected
    assert all("in a strongly typed network they are equal" in each.message for each in found)
    assert rules(*pair(DQ, W8, constant(0.1, scale), opset=19)) == []
    unknown = pair(Q, lambda g: g.op("Foreign", [g.input("x")]), constant(0.1, scale), opset=19)
    assert rules(*unknown) == []


@pytest.mark.parametrize(
    ("written", "zero", "declared", "expected"),
    [
        (TensorProto.INT8, constant(0, np.int8), TensorProto.INT8, False),
        (TensorProto.INT8, constant(0, np.float32), TensorProto.INT8, True),
        (TensorProto.INT8, constant(0, np.float32), 0, False),
        (TensorProto.INT8, absent, TensorProto.INT8, False),
        (None, constant(0, np.float32), TensorProto.INT8, False),
    ],
)
def test_output_type_and_zero_point_agree(
    written: Any, zero: Tensor, declared: int, expected: bool
) -> None:
    """In an operator set without quantizers it is open what one writes."""
    g = GraphBuilder()
    y = g.op(Q, [X(g), SCALE(g), zero(g)], output_dtype=declared)
    g.output(y)
    model = g.model()
    model.opset_import[0].version = 7 if written is None else 17
    if written is not None:
        set_type(model, y, written)
    graph = OnnxGraph(model)
    found = [
        each
        for each in check_pair(graph, graph.nodes[-1])
        if each.message.startswith("output_dtype")
    ]
    assert [(each.code, each.rule) for each in found] == [("V06", "P14")] * expected
    assert all(
        "output_dtype says int8 and the zero point is float32." in each.message for each in found
    )
