"""Placement rules in detail: counts, severities, verdicts and kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx_graphs import GraphBuilder, batch_norm, end, image
from placement_graphs import (
    attention,
    concat,
    convolution,
    convolution_over,
    cut,
    dense,
    dense_axis,
    first_layer,
    gate,
    operands,
    other_reader,
    padded,
    pooled,
    requantized,
    residual,
    transposed_weight,
)

from qat_lib.analysis import FusionReport, analyze_graph


def report(g: GraphBuilder) -> FusionReport:
    return analyze_graph(g.graph())


def codes(g: GraphBuilder) -> set[str]:
    """The codes found, without the hint on the input Q's kernel."""
    return {finding.code for finding in report(g).findings} - {"H2"}


# One tensor, several scales.


def test_v09_requantization_over_a_pool() -> None:
    assert codes(requantized(0.2)) == {"V09"}
    assert [kernel.kind for kernel in report(requantized(0.2)).kernels].count("requantize") == 1
    assert codes(requantized(0.1)) == set()


def test_a_relu_between_two_scales_requantizes_while_it_computes() -> None:
    g = GraphBuilder()
    y = g.qdq(batch_norm(g, g.op("MaxPool", [image(g)], kernel_shape=[2, 2])), 0.2, "bn_quantizer")
    end(g, g.op("Relu", [y], "relu/Relu"))
    assert "V09" not in codes(g)
    assert [(k.kind, k.reads, k.writes) for k in report(g).kernels if k.keras_layer == "relu"] == [
        ("elementwise", "int8", "int8")
    ]


def test_v09_two_pairs_in_a_row() -> None:
    g = GraphBuilder()
    g.output(g.conv(g.qdq(g.qdq(image(g), 0.1), 0.2), 16, 16, name="next"))
    assert codes(g) == {"V09"}
    same = GraphBuilder()
    same.output(same.conv(same.qdq(same.qdq(image(same), 0.1), 0.1), 16, 16, name="next"))
    assert codes(same) == set()


# Operands of weighted layers.


@pytest.mark.parametrize(
    ("quantize_input", "quantize_weight", "precision", "expected"),
    [
        (True, True, "int8", set()),
        (True, False, "mixed", {"V10"}),
        (False, True, "mixed", {"V10"}),
        (False, False, "float", {"V11"}),
    ],
)
def test_v10_v11_operands(
    quantize_input: bool, quantize_weight: bool, precision: str, expected: set[str]
) -> None:
    g = operands(quantize_input=quantize_input, quantize_weight=quantize_weight)
    assert codes(g) == expected
    assert [layer.precision for layer in report(g).layers] == [precision, "int8"]


def product(*quantized: bool) -> GraphBuilder:
    g = GraphBuilder()
    operands = [g.input(name, (1, 32, 32)) for name in "ab"]
    g.output(
        g.op(
            "MatMul",
            [g.qdq(x) if q else x for x, q in zip(operands, quantized, strict=True)],
            "mul/MatMul",
        )
    )
    return g


def test_v10_product_of_two_activations() -> None:
    assert codes(product(True, False)) == {"V10"}
    assert codes(product(True, True)) == set()
    assert codes(product(False, False)) == {"V11"}


def test_v04_axis_is_followed_through_the_transpose() -> None:
    assert codes(transposed_weight(2)) == {"V12", "V04"}


@pytest.mark.parametrize(("axis", "expected"), [(-2, {"V04"}), (-1, set())])
def test_v04_axis_of_a_matmul_from_the_end(axis: int, expected: set[str]) -> None:
    assert codes(dense_axis(axis)) == expected


@pytest.mark.parametrize(
    ("trans_b", "axis", "expected"), [(1, 0, set()), (0, 1, set()), (1, 1, {"V04"})]
)
def test_v04_axis_of_a_gemm(trans_b: int, axis: int, expected: set[str]) -> None:
    g = GraphBuilder()
    shape = (32, 64) if trans_b else (64, 32)
    weight = g.dq(g.const(np.ones(shape), np.int8), np.full(shape[axis], 0.1), "w", axis=axis)
    g.output(
        g.op("Gemm", [g.qdq(g.input(shape=(32, 64))), weight], "quant_dense/Gemm", transB=trans_b)
    )
    assert codes(g) == expected


# Epilogues.


def epilogue(build: Callable[[GraphBuilder, str], str], **options: Any) -> FusionReport:
    g = GraphBuilder()
    return report(end(g, build(g, image(g, **options))))


EPILOGUES: dict[str, Callable[[GraphBuilder, str], str]] = {
    "relu": lambda g, x: g.op("Relu", [x]),
    "relu6": lambda g, x: g.op("Clip", [x, g.const(0.0), g.const(6.0)]),
    "bias and batch norm": lambda g, x: g.op(
        "Relu", [batch_norm(g, g.op("Add", [x, g.const(np.ones((16, 1, 1)))]))]
    ),
    "channel scale": lambda g, x: g.op("Mul", [x, g.const(np.ones((1, 16, 1, 1)))]),
    "silu": lambda g, x: g.op("Mul", [x, g.op("Sigmoid", [x])]),
    "silu, other order": lambda g, x: g.op("Mul", [g.op("Sigmoid", [x]), x]),
    "hard swish": lambda g, x: g.op(
        "Mul",
        [
            x,
            g.op(
                "Mul",
                [
                    g.op("Clip", [g.op("Add", [x, g.const(3.0)]), g.const(0.0), g.const(6.0)]),
                    g.const(0.16),
                ],
            ),
        ],
    ),
    "gelu": lambda g, x: g.op(
        "Mul",
        [
            g.op(
                "Mul",
                [x, g.op("Add", [g.op("Erf", [g.op("Div", [x, g.const(1.41)])]), g.const(1.0)])],
            ),
            g.const(0.5),
        ],
    ),
    "max pool": lambda g, x: g.op("MaxPool", [g.op("Relu", [x])], kernel_shape=[2, 2]),
    "identity": lambda g, x: g.op("Identity", [g.op("Dropout", [g.op("Relu", [x])])]),
    "zero padding": lambda g, x: g.op(
        "Pad", [g.op("Relu", [x]), g.const([0, 0, 1, 1, 0, 0, 1, 1], np.int64)]
    ),
}


@pytest.mark.parametrize("name", EPILOGUES)
def test_epilogues_join_the_kernel(name: str) -> None:
    found = epilogue(EPILOGUES[name])
    assert found.layers[0].writes == "int8"
    assert {finding.code for finding in found.findings} <= {"H1", "H2"}
    assert [kernel.detail for kernel in found.kernels] == ["quantize"]


def test_depthwise_kernel_takes_no_gate() -> None:
    found = epilogue(EPILOGUES["silu"], group=16)
    assert found.layers[0].writes == "float"
    assert [kernel.kind for kernel in found.kernels].count("elementwise") == 1
    assert epilogue(EPILOGUES["relu"], group=16).layers[0].writes == "int8"


def test_v13_float_reader_beside_the_q() -> None:
    found = report(other_reader("GlobalAveragePool"))
    assert [(f.code, f.severity) for f in found.findings if f.code != "H2"] == [("V13", "warning")]
    assert "'other'" in found.findings[-1].advice
    assert found.layers[0].writes == "float"


def test_v13_is_only_information_where_nothing_better_exists() -> None:
    found = report(other_reader("Sigmoid"))
    assert [(f.code, f.severity) for f in found.findings if f.code != "H2"] == [("V13", "info")]


def test_v13_needs_a_q() -> None:
    g = GraphBuilder()
    g.output(g.op("Softmax", [image(g)]))
    assert codes(g) == set()


def test_v14_pair_inside_of_a_block() -> None:
    assert codes(cut("before batch norm")) == {"V14"}
    assert codes(cut("before relu")) == {"V14"}
    assert codes(cut("after")) == set()


@pytest.mark.parametrize("name", ["silu", "silu, other order", "hard swish", "gelu"])
def test_v14_pair_before_a_gate(name: str) -> None:
    g = GraphBuilder()
    end(g, EPILOGUES[name](g, g.qdq(image(g))))
    assert "V14" in codes(g)


def test_h1_padding_before_a_convolution() -> None:
    assert codes(padded([0, 0, 1, 1, 0, 0, 1, 1])) == {"H1"}
    assert "H1" not in codes(padded([0, 8, 1, 1, 0, 8, 1, 1]))
    assert "H1" not in codes(padded([0, 0, 1, 1, 0, 0, 1, 1], value=1.0))


# Residual Adds.


@pytest.mark.parametrize(
    ("options", "rule", "precision", "fused", "expected"),
    [
        ({"quantize_shortcut": True}, "F1", "int8", True, set()),
        ({"quantize_shortcut": False}, "F2", "float", True, {"V15", "V13"}),
        ({"quantize_shortcut": True, "quantize_output": False}, "F3", "float", True, {"V16"}),
        ({"quantize_shortcut": True, "quantize_branch": True}, "F4", "int8", False, {"V17"}),
        ({"quantize_shortcut": False, "quantize_branch": True}, "F5", "float", False, {"V18"}),
    ],
)
def test_residual_verdicts(
    options: dict[str, bool], rule: str, precision: str, fused: bool, expected: set[str]
) -> None:
    found = report(residual(**options))
    (add,) = found.adds
    assert (add.rule, add.precision, add.fused_into) == (
        rule,
        precision,
        "quant_branch/Conv" if fused else None,
    )
    assert {finding.code for finding in found.findings} - {"H2"} == expected


def test_f3_has_a_kernel_that_dequantizes_the_residual() -> None:
    details = [
        k.detail for k in report(residual(quantize_shortcut=True, quantize_output=False)).kernels
    ]
    assert details == ["quantize", "dequantize"]


def test_add_of_equal_depth_goes_to_the_second_operand() -> None:
    g = GraphBuilder()
    x = g.qdq(g.input())
    shortcut, branch = g.conv(x, 16, 16, 1, name="shortcut"), g.conv(x, 16, 16, name="branch")
    end(g, g.op("Add", [branch, shortcut], "add/Add"))
    found = report(g)
    assert found.adds[0].fused_into == "quant_shortcut/Conv"
    (v15,) = [finding for finding in found.findings if finding.code == "V15"]
    assert "'branch'" in v15.advice


def test_f6_broadcasting_add_stands_alone() -> None:
    g = GraphBuilder()
    x = g.qdq(g.input())
    gate = g.op("GlobalAveragePool", [x])
    end(g, g.op("Add", [g.conv(x, 16, 16), g.qdq(gate)], "add/Add"))
    assert [(add.rule, add.fused_into) for add in report(g).adds] == [("F6", None)]


def test_float_graph_has_adds_without_findings() -> None:
    g = GraphBuilder()
    x = g.input()
    g.output(g.op("Relu", [g.op("Add", [x, g.conv(x, 16, 16, quantized=False)])]))
    assert codes(g) == {"V11"}
    assert report(g).adds[0].fused_into == "conv/Conv"


# Pools, Concats, elementwise operators.


@pytest.mark.parametrize("op", ["GlobalAveragePool", "AveragePool", "ReduceMean"])
def test_v19_average_needs_a_quantized_output(op: str) -> None:
    assert codes(pooled(op)) == {"V19"}
    assert codes(pooled(op, quantize_output=True)) == set()
    assert [pool.precision for pool in report(pooled(op, quantize_output=True)).pools] == ["int8"]


def test_a_mean_over_channels_is_no_pool() -> None:
    g = GraphBuilder()
    g.output(g.op("ReduceMean", [g.qdq(image(g))], axes=[1]))
    assert report(g).pools == ()


def test_v20_scales_of_a_concat() -> None:
    found = report(concat(0.1, 0.2))
    assert {finding.code for finding in found.findings} - {"H2"} == {"V20"}
    assert [kernel.detail for kernel in found.kernels if kernel.kind == "requantize"] == ["rescale"]
    tied = report(concat(0.1, 0.1, output=0.2))
    assert {finding.code for finding in tied.findings} - {"H2"} == {"V20"}
    assert [kernel.detail for kernel in tied.kernels if kernel.kind == "requantize"] == [
        "rescale"
    ] * 2
    assert codes(concat(None, None)) == set()  # the Q behind it moves up into both branches


def test_v21_concat_of_quantized_and_float() -> None:
    assert "V21" in codes(concat(0.1, None, output=None))
    assert "V21" in codes(concat(0.1, None))


def test_v18_gate_of_squeeze_and_excite() -> None:
    assert codes(gate()) == set()
    assert codes(gate(quantize_gate=False)) == {"V18"}
    assert codes(gate(quantize_output=False)) == {"V18"}


# Attention, shapes, evidence, types.


@pytest.mark.parametrize("einsum", [False, True])
def test_v23_quantized_scores_or_mask(einsum: bool) -> None:
    assert "V23" in codes(attention(quantize_scores=True, einsum=einsum))
    assert "V23" in codes(attention(quantize_mask=True, einsum=einsum))
    assert "V23" not in codes(attention(einsum=einsum))


@pytest.mark.parametrize(
    ("op", "attributes"),
    [("Cast", {"to": 1}), ("Transpose", {"perm": [0, 2, 1]}), ("Reshape", None)],
)
def test_v23_recognizes_moved_or_cast_attention_weights(
    op: str, attributes: dict[str, Any] | None
) -> None:
    g = GraphBuilder()
    q, k, v = (g.qdq(g.input(name, (4, 32, 32))) for name in "qkv")
    weights = g.op("Softmax", [g.qdq(g.op("MatMul", [q, k]))])
    shape = [g.const([4, 32, 32], np.int64)] if attributes is None else []
    moved = g.op(op, [weights, *shape], **(attributes or {}))
    g.output(g.op("MatMul", [g.qdq(moved), v]))
    assert "V23" in codes(g)


def mask_from(quantize: bool) -> GraphBuilder:
    """Attention whose mask gets its dimensions behind its quantizer."""
    g = GraphBuilder()
    q, k, v = (g.qdq(g.input(name, (4, 32, 32))) for name in "qkv")
    mask = g.input("mask", (4, 32))
    mask = g.op("Unsqueeze", [g.qdq(mask) if quantize else mask, g.const([1], np.int64)])
    weights = g.op("Softmax", [g.op("Add", [g.op("MatMul", [q, k]), mask])])
    g.output(g.op("MatMul", [g.qdq(weights), v]))
    return g


def test_v23_follows_the_mask_over_what_moves_it() -> None:
    assert codes(mask_from(quantize=True)) == {"V23"}
    assert codes(mask_from(quantize=False)) == set()


def test_a_bias_of_the_scores_is_no_residual() -> None:
    assert codes(attention()) == set()
    outside = GraphBuilder()  # the same Add without a Softmax behind it
    product = outside.op("MatMul", [outside.qdq(outside.input(name, (4, 32, 32))) for name in "qk"])
    outside.output(outside.op("Add", [product, outside.input("residual", (4, 32, 32))]))
    assert codes(outside) == {"V15"}


def test_a_classifier_is_no_attention() -> None:
    g = GraphBuilder()
    g.output(g.op("Softmax", [g.qdq(image(g))]))
    assert "V23" not in codes(g)


def test_v24_small_products() -> None:
    assert codes(dense(1, 64, 64)) == {"V24"}
    assert codes(dense("batch", 64, 64)) == set()
    assert codes(dense(32, 64, 10)) == {"V24"}
    assert codes(dense(32, 8, 64)) == {"V24"}
    assert codes(dense(32, 16, 16)) == set()


@pytest.mark.parametrize(("rows", "expected"), [(1, {"V24"}), (2, set())])
def test_v24_a_batch_of_products_of_one_row(rows: int, expected: set[str]) -> None:
    g = GraphBuilder()
    a, b = g.input("a", (1, 4, rows, 32)), g.input("b", (1, 4, 32, 32))
    g.output(g.op("MatMul", [g.qdq(a), g.qdq(b)]))
    assert codes(g) == expected


def test_v24_small_convolutions() -> None:
    assert "V24" in codes(convolution(4, 8))
    assert "V24" in codes(convolution(3, 30))
    assert "V24" not in codes(convolution(16, 16))
    assert "V24" not in codes(convolution(4, 16))
    assert "V24" not in codes(convolution(16, 16, group=16))
    assert "V24" in codes(convolution(16, 16, group=16, kernel=1))


def test_v25_channels() -> None:
    assert codes(convolution(32, 24)) == {"V25"}
    assert codes(convolution(32, 48)) == set()
    assert codes(convolution(24, 24, group=24)) == set()  # depthwise: no tensor cores
    assert codes(convolution(48, 24, group=2)) == {"V25"}
    first = GraphBuilder()
    first.output(first.conv(first.qdq(first.input(shape=(1, 3, 8, 8))), 3, 16))
    assert codes(first) == set()
    transposed = GraphBuilder()
    x = transposed.op("Transpose", [transposed.input(shape=(1, 8, 8, 3))], perm=[0, 3, 1, 2])
    transposed.output(transposed.conv(transposed.qdq(x), 3, 16))
    assert codes(transposed) == {"H3"}


@pytest.mark.parametrize(("dimensions", "expected"), [(1, {"V27"}), (2, set()), (3, {"V27"})])
def test_v27_dimensions_of_a_convolution(dimensions: int, expected: set[str]) -> None:
    assert codes(convolution_over(dimensions)) == expected


def test_h2_and_h3_about_the_input() -> None:
    found = report(first_layer(transpose=True))
    assert [(k.kind, k.detail) for k in found.kernels] == [
        ("reformat", "transpose"),
        ("reformat", "quantize"),
    ]
    cast = GraphBuilder()
    x = cast.op("Cast", [cast.input(dtype=np.float16)], to=1)
    cast.output(cast.conv(cast.qdq(cast.op("Transpose", [x], perm=[0, 1, 3, 2])), 16, 16))
    assert {finding.code for finding in report(cast).findings} == {"H2", "H3"}
    assert report(first_layer(int8=True)).kernels == ()


def blocks(dtype: Any) -> GraphBuilder:
    """A product with only the weight quantized, in blocks of 16 rows.

    ModelOpt writes INT4 like that.
    """
    g = GraphBuilder(opset=21)
    weight = g.const(np.ones((32, 64)), dtype, "weight")
    scales = g.const(np.full((2, 64), 0.1), np.float32)
    dequantized = g.op(
        "DequantizeLinear", [weight, scales], "dq/DequantizeLinear", axis=0, block_size=16
    )
    g.output(g.op("MatMul", [g.input(shape=(32, 32)), dequantized], "dense/MatMul"))
    return g


def test_blocks_of_int4_are_legal_and_not_called_int8() -> None:
    assert codes(blocks(ml_dtypes.int4)) == {"V27"}
    assert report(blocks(ml_dtypes.int4)).layers[0].precision == "float"
    assert codes(blocks(np.int8)) == {"V04"}  # illegal, so that nothing more is said of the layer
    assert report(blocks(np.int8)).int8_layers == 0


def test_fp8_is_not_called_int8() -> None:
    def product(dtype: Any) -> GraphBuilder:
        g = GraphBuilder(opset=19)
        scale, zero = g.const(0.1), g.const(0, dtype)
        q = g.op("QuantizeLinear", [g.input(shape=(32, 32)), scale, zero])
        weight = g.op("DequantizeLinear", [g.const(np.ones((32, 32)), dtype), scale, zero])
        g.output(
            g.op("MatMul", [g.op("DequantizeLinear", [q, scale, zero]), weight], "dense/MatMul")
        )
        return g

    assert report(product(ml_dtypes.float8_e4m3fn)).layers[0].precision == "float"
    assert "V11" not in codes(product(ml_dtypes.float8_e4m3fn))
    assert report(product(np.int8)).layers[0].precision == "int8"


def test_the_mean_of_a_normalization_is_no_pool() -> None:
    def over_last_axis(*, subtract: bool) -> GraphBuilder:
        g = GraphBuilder()
        x = g.qdq(g.op("Tanh", [g.input(shape=(1, 8, 16))]))
        mean = g.op("ReduceMean", [x], "norm/ReduceMean", axes=[2])
        g.output(g.op("Sub", [x, mean], "norm/Sub") if subtract else mean)
        return g

    assert codes(over_last_axis(subtract=True)) == set()
    assert report(over_last_axis(subtract=True)).pools == ()
    assert codes(over_last_axis(subtract=False)) == {"V19"}


def test_a_sum_of_indices_is_no_residual() -> None:
    def added(dtype: Any) -> GraphBuilder:
        g = GraphBuilder()
        g.output(g.op("Add", [g.input("a", (1, 4), dtype), g.input("b", (1, 4), dtype)]))
        return g

    assert report(added(np.int32)).adds == ()
    assert len(report(added(np.float16)).adds) == 1


def test_islands_lie_between_int8_kernels() -> None:
    g = GraphBuilder()
    y = g.op("Exp", [g.op("Tanh", [image(g)], "tanh/Tanh")], "exp/Exp")
    g.output(g.op("Softmax", [g.conv(g.qdq(y), 16, 16, name="next")]))
    assert report(g).islands == (("tanh/Tanh + exp/Exp",),)


def test_shape_arithmetic_is_no_reader() -> None:
    g = GraphBuilder()
    y = image(g)
    batch = g.op("Gather", [g.op("Shape", [y]), g.const([0], np.int64)])
    flat = g.op("Reshape", [y, g.op("Concat", [batch, g.const([-1], np.int64)], axis=0)])
    g.output(g.dense(g.qdq(flat), 4096, 16))
    assert codes(g) == {"V24"}  # one row
    assert report(g).layers[0].writes == "int8"
