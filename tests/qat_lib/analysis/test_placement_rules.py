"""Each placement rule with a graph that triggers it and one that nearly does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx_graphs import GraphBuilder

from qat_lib.analysis import FusionReport, analyze_graph


def report(g: GraphBuilder) -> FusionReport:
    return analyze_graph(g.graph())


def codes(g: GraphBuilder) -> set[str]:
    """The codes found, without the hint that the input's Q costs a kernel."""
    return {finding.code for finding in report(g).findings} - {"H2"}


def end(g: GraphBuilder, *tensors: str) -> GraphBuilder:
    """Finish with a convolution behind every tensor's quantizer, so that their outputs are quantized."""
    for tensor in tensors:
        g.output(g.conv(g.qdq(tensor), 16, 16, 1, name=f"last{len(g.outputs)}"))
    return g


def batch_norm(g: GraphBuilder, x: str, channels: int = 16, name: str = "bn") -> str:
    return g.op(
        "BatchNormalization", [x, *(g.const(np.ones(channels)) for _ in range(4))], f"{name}/BatchNormalization"
    )


def image(g: GraphBuilder, channels: int = 16, **options: Any) -> str:
    """A quantized tensor that some earlier layer wrote."""
    return g.conv(g.qdq(g.input(shape=(1, 16, 16, 16))), 16, channels, 3, name="first", **options)


# One tensor, several scales.


def two_scales(first: float, second: float) -> GraphBuilder:
    g = GraphBuilder()
    x = g.op("Relu", [image(g)])
    g.output(g.conv(g.qdq(x, first), 16, 16, name="a"), g.conv(g.qdq(x, second), 16, 16, name="b"))
    return g


def test_v08_two_scales_on_one_tensor() -> None:
    assert codes(two_scales(0.1, 0.2)) == {"V08", "V13"}
    assert codes(two_scales(0.1, float(np.nextafter(np.float32(0.1), np.float32(1))))) == {"V08", "V13"}
    assert codes(two_scales(0.1, 0.1)) == set()


def requantized(second: float) -> GraphBuilder:
    g = GraphBuilder()
    pooled = g.op("MaxPool", [g.qdq(image(g), 0.1)], "pool/MaxPool", kernel_shape=[2, 2])
    g.output(g.conv(g.qdq(pooled, second), 16, 16, name="next"))
    return g


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
def test_v10_v11_operands(quantize_input: bool, quantize_weight: bool, precision: str, expected: set[str]) -> None:
    g = GraphBuilder()
    x = g.input()
    g.output(g.conv(g.qdq(x) if quantize_input else x, 16, 16, quantized=quantize_weight))
    assert codes(g) == expected
    assert [layer.precision for layer in report(g).layers] == [precision]


def product(*quantized: bool) -> GraphBuilder:
    g = GraphBuilder()
    operands = [g.input(name, (1, 32, 32)) for name in "ab"]
    g.output(g.op("MatMul", [g.qdq(x) if q else x for x, q in zip(operands, quantized, strict=True)], "mul/MatMul"))
    return g


def test_v10_product_of_two_activations() -> None:
    assert codes(product(True, False)) == {"V10"}
    assert codes(product(True, True)) == set()
    assert codes(product(False, False)) == {"V11"}


def transposed_weight(axis: int, *, before_quantizer: bool = False) -> GraphBuilder:
    """HWIO weights that a Transpose brings into OIHW."""
    g = GraphBuilder()
    x = g.qdq(g.input())
    stored = g.const(np.ones((3, 3, 16, 32)), np.float32 if before_quantizer else np.int8)
    if before_quantizer:
        weight = g.op("Transpose", [stored], perm=[3, 2, 0, 1])
        scale = np.full(32, 0.1)
        weight = g.dq(g.q(weight, scale, "w", axis=0), scale, "w", axis=0)
    else:
        scale = np.full((3, 3, 16, 32)[axis], 0.1)
        weight = g.op("Transpose", [g.dq(stored, scale, "w", axis=axis)], perm=[3, 2, 0, 1])
    g.output(g.op("Conv", [x, weight], "quant_conv/Conv", pads=[1] * 4))
    return g


def test_v12_transpose_between_dq_and_conv() -> None:
    assert codes(transposed_weight(3)) == {"V12"}
    assert codes(transposed_weight(3, before_quantizer=True)) == set()


def test_v04_axis_is_followed_through_the_transpose() -> None:
    assert codes(transposed_weight(2)) == {"V12", "V04"}


@pytest.mark.parametrize(("axis", "expected"), [(0, {"V04"}), (1, set()), (-1, set())])
def test_v04_axis_of_a_matmul(axis: int, expected: set[str]) -> None:
    g = GraphBuilder()
    x = g.qdq(g.input(shape=(32, 64)))
    weight = g.dq(g.const(np.ones((64, 32)), np.int8), np.full((64, 32)[axis], 0.1), "w", axis=axis)
    g.output(g.op("MatMul", [x, weight], "quant_dense/MatMul"))
    assert codes(g) == expected


@pytest.mark.parametrize(("trans_b", "axis", "expected"), [(1, 0, set()), (0, 1, set()), (1, 1, {"V04"})])
def test_v04_axis_of_a_gemm(trans_b: int, axis: int, expected: set[str]) -> None:
    g = GraphBuilder()
    shape = (32, 64) if trans_b else (64, 32)
    weight = g.dq(g.const(np.ones(shape), np.int8), np.full(shape[axis], 0.1), "w", axis=axis)
    g.output(g.op("Gemm", [g.qdq(g.input(shape=(32, 64))), weight], "quant_dense/Gemm", transB=trans_b))
    assert codes(g) == expected


# Epilogues.


def epilogue(build: Callable[[GraphBuilder, str], str], **options: Any) -> FusionReport:
    g = GraphBuilder()
    return report(end(g, build(g, image(g, **options))))


EPILOGUES: dict[str, Callable[[GraphBuilder, str], str]] = {
    "relu": lambda g, x: g.op("Relu", [x]),
    "relu6": lambda g, x: g.op("Clip", [x, g.const(0.0), g.const(6.0)]),
    "bias and batch norm": lambda g, x: g.op("Relu", [batch_norm(g, g.op("Add", [x, g.const(np.ones((16, 1, 1)))]))]),
    "channel scale": lambda g, x: g.op("Mul", [x, g.const(np.ones((1, 16, 1, 1)))]),
    "silu": lambda g, x: g.op("Mul", [x, g.op("Sigmoid", [x])]),
    "silu, other order": lambda g, x: g.op("Mul", [g.op("Sigmoid", [x]), x]),
    "hard swish": lambda g, x: g.op(
        "Mul",
        [x, g.op("Mul", [g.op("Clip", [g.op("Add", [x, g.const(3.0)]), g.const(0.0), g.const(6.0)]), g.const(0.16)])],
    ),
    "gelu": lambda g, x: g.op(
        "Mul",
        [
            g.op("Mul", [x, g.op("Add", [g.op("Erf", [g.op("Div", [x, g.const(1.41)])]), g.const(1.0)])]),
            g.const(0.5),
        ],
    ),
    "max pool": lambda g, x: g.op("MaxPool", [g.op("Relu", [x])], kernel_shape=[2, 2]),
    "identity": lambda g, x: g.op("Identity", [g.op("Dropout", [g.op("Relu", [x])])]),
    "zero padding": lambda g, x: g.op("Pad", [g.op("Relu", [x]), g.const([0, 0, 1, 1, 0, 0, 1, 1], np.int64)]),
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


def float_reader(op: str) -> GraphBuilder:
    g = GraphBuilder()
    y = g.op("Relu", [image(g)])
    g.output(g.conv(g.qdq(y), 16, 16, name="next"), g.op(op, [y], f"other/{op}"))
    return g


def test_v13_float_reader_beside_the_q() -> None:
    found = report(float_reader("GlobalAveragePool"))
    assert [(f.code, f.severity) for f in found.findings if f.code != "H2"] == [("V13", "warning")]
    assert "'other'" in found.findings[-1].advice
    assert found.layers[0].writes == "float"


def test_v13_is_only_information_where_nothing_better_exists() -> None:
    found = report(float_reader("Sigmoid"))
    assert [(f.code, f.severity) for f in found.findings if f.code != "H2"] == [("V13", "info")]


def test_v13_needs_a_q() -> None:
    g = GraphBuilder()
    g.output(g.op("Softmax", [image(g)]))
    assert codes(g) == set()


def cut(where: str) -> GraphBuilder:
    g = GraphBuilder()
    y = image(g)
    y = g.qdq(y) if where == "before batch norm" else y
    y = batch_norm(g, y)
    y = g.qdq(y) if where == "before relu" else y
    return end(g, g.op("Relu", [y]))


def test_v14_pair_inside_of_a_block() -> None:
    assert codes(cut("before batch norm")) == {"V14"}
    assert codes(cut("before relu")) == {"V14"}
    assert codes(cut("after")) == set()


def test_v14_pair_before_silu() -> None:
    g = GraphBuilder()
    y = g.qdq(image(g))
    end(g, g.op("Mul", [y, g.op("Sigmoid", [y])]))
    assert "V14" in codes(g)


def test_h1_padding_before_a_convolution() -> None:
    def padded(pads: list[int], value: float = 0.0) -> GraphBuilder:
        g = GraphBuilder()
        x = g.op("Pad", [g.qdq(image(g)), g.const(pads, np.int64), g.const(value)], "pad/Pad")
        g.output(g.conv(x, 16, 16, name="next"))
        return g

    assert codes(padded([0, 0, 1, 1, 0, 0, 1, 1])) == {"H1"}
    assert "H1" not in codes(padded([0, 1, 1, 1, 0, 1, 1, 1]))
    assert "H1" not in codes(padded([0, 0, 1, 1, 0, 0, 1, 1], value=1.0))


# Residual Adds.


def residual(
    *,
    quantize_shortcut: bool,
    quantize_branch: bool = False,
    quantize_output: bool = True,
    shape: Any = (1, 16, 16, 16),
) -> GraphBuilder:
    """Two convolutions whose sum a third reads; the shortcut is a tensor that is already quantized."""
    g = GraphBuilder()
    x = g.input(shape=shape)
    quantized = g.qdq(x)
    branch = g.conv(quantized, 16, 16, name="branch")
    branch = g.qdq(branch) if quantize_branch else branch
    total = g.op("Relu", [g.op("Add", [quantized if quantize_shortcut else x, branch], "add/Add")], "relu/Relu")
    g.output(g.conv(g.qdq(total), 16, 16, name="next") if quantize_output else total)
    return g


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
    assert (add.rule, add.precision, add.fused_into) == (rule, precision, "quant_branch/Conv" if fused else None)
    assert {finding.code for finding in found.findings} - {"H2"} == expected


def test_f3_has_a_kernel_that_dequantizes_the_residual() -> None:
    details = [k.detail for k in report(residual(quantize_shortcut=True, quantize_output=False)).kernels]
    assert details == ["quantize", "dequantize"]


def test_two_convolutions_in_floating_point_give_the_add_to_the_later() -> None:
    g = GraphBuilder()
    x = g.qdq(g.input())
    shortcut, branch = g.conv(x, 16, 16, 1, name="shortcut"), g.conv(x, 16, 16, name="branch")
    end(g, g.op("Add", [branch, shortcut], "add/Add"))
    found = report(g)
    assert found.adds[0].fused_into == "quant_branch/Conv"
    (v15,) = [finding for finding in found.findings if finding.code == "V15"]
    assert "'shortcut'" in v15.advice


def test_f6_broadcasting_add_stands_alone() -> None:
    g = GraphBuilder()
    x = g.qdq(g.input())
    gate = g.op("GlobalAveragePool", [x])
    end(g, g.op("Add", [g.conv(x, 16, 16), g.qdq(gate)], "add/Add"))
    assert [(add.rule, add.fused_into) for add in report(g).adds] == [("F6", None)]


def test_a_float_graph_has_adds_but_no_complaints_about_them() -> None:
    g = GraphBuilder()
    x = g.input()
    g.output(g.op("Relu", [g.op("Add", [x, g.conv(x, 16, 16, quantized=False)])]))
    assert codes(g) == {"V11"}
    assert report(g).adds[0].fused_into == "conv/Conv"


# Pools, Concats, elementwise operators.


@pytest.mark.parametrize("op", ["GlobalAveragePool", "AveragePool", "ReduceMean"])
def test_v19_average_needs_a_quantized_output(op: str) -> None:
    def pooled(quantize: bool) -> GraphBuilder:
        g = GraphBuilder()
        attributes: dict[str, Any] = {"AveragePool": {"kernel_shape": [2, 2]}, "ReduceMean": {"axes": [2, 3]}}.get(
            op, {}
        )
        y = g.op(op, [g.qdq(image(g))], f"pool/{op}", **attributes)
        if op == "ReduceMean":
            attributes["keepdims"] = 1
        return end(g, y) if quantize else _output(g, y)

    assert codes(pooled(quantize=False)) == {"V19"}
    assert codes(pooled(quantize=True)) == set()
    assert [pool.precision for pool in report(pooled(quantize=True)).pools] == ["int8"]


def _output(g: GraphBuilder, *tensors: str) -> GraphBuilder:
    g.output(*tensors)
    return g


def test_a_mean_over_channels_is_no_pool() -> None:
    g = GraphBuilder()
    g.output(g.op("ReduceMean", [g.qdq(image(g))], axes=[1]))
    assert report(g).pools == ()


def concat(*scales: float | None, output: float | None = 0.1) -> GraphBuilder:
    g = GraphBuilder()
    x = g.qdq(g.input())
    branches = [g.conv(x, 16, 16, name=f"branch{i}") for i in range(len(scales))]
    read = [g.qdq(y, scale) if scale else y for y, scale in zip(branches, scales, strict=True)]
    y = g.op("Concat", read, "concat/Concat", axis=1)
    g.output(g.conv(g.qdq(y, output), 32, 16, 1, name="next") if output else y)
    return g


def test_v20_scales_of_a_concat() -> None:
    found = report(concat(0.1, 0.2))
    assert {finding.code for finding in found.findings} - {"H2"} == {"V20"}
    assert [kernel.detail for kernel in found.kernels if kernel.kind == "requantize"] == ["rescale"]
    assert codes(concat(0.1, 0.1)) == set()
    assert codes(concat(None, None)) == set()  # the Q behind it moves up into both branches


def test_v21_concat_of_quantized_and_float() -> None:
    assert "V21" in codes(concat(0.1, None, output=None))
    assert "V21" in codes(concat(0.1, None))


def gate(*, quantize_gate: bool = True, quantize_output: bool = True) -> GraphBuilder:
    """Squeeze and excite."""
    g = GraphBuilder()
    x = g.qdq(image(g))
    pooled = g.qdq(g.op("GlobalAveragePool", [x]))
    weights = g.op("Sigmoid", [g.conv(pooled, 16, 16, 1, name="expand")])
    y = g.op("Mul", [x, g.qdq(weights) if quantize_gate else weights], "excite/Mul")
    return end(g, y) if quantize_output else _output(g, y)


def test_v18_gate_of_squeeze_and_excite() -> None:
    assert codes(gate()) == set()
    assert codes(gate(quantize_gate=False)) == {"V18"}
    assert codes(gate(quantize_output=False)) == {"V18"}


def test_v22_pairs_around_what_is_always_float() -> None:
    def around(quantize: bool) -> GraphBuilder:
        g = GraphBuilder()
        y = image(g)
        return end(g, g.op("Tanh", [g.qdq(y) if quantize else y], "tanh/Tanh"))

    assert codes(around(quantize=True)) == {"V22"}
    assert codes(around(quantize=False)) == set()


# Attention, shapes, evidence, types.


def attention(*, quantize_scores: bool = False, quantize_mask: bool = False, einsum: bool = False) -> GraphBuilder:
    g = GraphBuilder()
    q, k, v = (g.qdq(g.input(name, (1, 4, 32, 32))) for name in "qkv")

    def product(a: str, b: str, name: str) -> str:
        if einsum:  # as Keras's attention writes it
            return g.op("Einsum", [a, b], f"{name}/Einsum", equation="abcd,abde->abce")
        return g.op("MatMul", [a, b], f"{name}/MatMul")

    scores = g.op("Mul", [product(q, k, "attention"), g.const(0.125)], "attention/Mul")
    mask = g.input("mask", (1, 4, 32, 32))
    scores = g.op("Add", [scores, g.qdq(mask) if quantize_mask else mask], "attention/Add")
    weights = g.op("Softmax", [g.qdq(scores) if quantize_scores else scores], "attention/Softmax")
    g.output(product(g.qdq(weights), v, "attention/values"))
    return g


@pytest.mark.parametrize("einsum", [False, True])
def test_v23_quantized_scores_or_mask(einsum: bool) -> None:
    assert "V23" in codes(attention(quantize_scores=True, einsum=einsum))
    assert "V23" in codes(attention(quantize_mask=True, einsum=einsum))
    assert "V23" not in codes(attention(einsum=einsum))


def test_a_classifier_is_no_attention() -> None:
    g = GraphBuilder()
    g.output(g.op("Softmax", [g.qdq(image(g))]))
    assert "V23" not in codes(g)


def dense(rows: Any, inner: int, units: int) -> GraphBuilder:
    g = GraphBuilder()
    g.output(g.dense(g.qdq(g.input(shape=(rows, inner))), inner, units))
    return g


def test_v24_small_products() -> None:
    assert codes(dense(1, 64, 64)) == {"V24"}
    assert codes(dense("batch", 64, 64)) == set()
    assert codes(dense(32, 64, 10)) == {"V24"}
    assert codes(dense(32, 8, 64)) == {"V24"}
    assert codes(dense(32, 16, 16)) == set()


def convolution(channels: int, filters: int, **options: Any) -> GraphBuilder:
    """A convolution that does not read the graph's input."""
    g = GraphBuilder()
    x = g.op("Tanh", [g.input(shape=(1, channels, 8, 8))])
    g.output(g.conv(g.qdq(x), channels, filters, **options))
    return g


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


def transposed_convolution(axis: int | None) -> GraphBuilder:
    g = GraphBuilder()
    weight = g.weight((16, 16, 2, 2), axis)
    g.output(g.op("ConvTranspose", [g.qdq(g.input()), weight], "quant_up/ConvTranspose", strides=[2, 2]))
    return g


def test_v26_transposed_convolution() -> None:
    assert codes(transposed_convolution(1)) == {"V26"}
    assert codes(transposed_convolution(None)) == set()


@pytest.mark.parametrize(("rank", "expected"), [(3, {"V27"}), (4, set()), (5, {"V27"})])
def test_v27_dimensions_of_a_convolution(rank: int, expected: set[str]) -> None:
    g = GraphBuilder()
    x = g.qdq(g.input(shape=(1, 16, *[8] * (rank - 2))))
    g.output(g.op("Conv", [x, g.weight((16, 16, *[3] * (rank - 2)))], "quant_conv/Conv"))
    assert codes(g) == expected


def typed(activation: Any, weight: Any) -> GraphBuilder:
    g = GraphBuilder(opset=19, dtype=activation)
    x = g.qdq(g.input())
    g.dtype = np.dtype(weight)
    g.output(g.op("Conv", [x, g.weight((16, 16, 1, 1))], "quant_conv/Conv"))
    return g


def test_v28_types_of_operands() -> None:
    assert codes(typed(np.float16, np.float32)) == {"V28"}
    assert codes(typed(np.float16, np.float16)) == set()


def test_h2_and_h3_about_the_input() -> None:
    g = GraphBuilder()
    x = g.op("Transpose", [g.input(shape=(1, 8, 8, 16))], "to_nchw/Transpose", perm=[0, 3, 1, 2])
    g.output(g.conv(g.qdq(x), 16, 16))
    assert codes(g) == {"H3"}
    assert [(k.kind, k.detail) for k in report(g).kernels] == [("reformat", "transpose"), ("reformat", "quantize")]
    cast = GraphBuilder()
    x = cast.op("Cast", [cast.input(dtype=np.float16)], to=1)
    cast.output(cast.conv(cast.qdq(cast.op("Transpose", [x], perm=[0, 1, 3, 2])), 16, 16))
    assert {finding.code for finding in report(cast).findings} == {"H2", "H3"}
    fed = GraphBuilder()
    fed.output(fed.conv(fed.dq(fed.input(dtype=np.int8)), 16, 16))
    assert report(fed).findings == ()
    assert report(fed).kernels == ()


def blocks(dtype: Any) -> GraphBuilder:
    """A product whose weight alone is quantized, in blocks of 16 rows, as ModelOpt writes INT4."""
    g = GraphBuilder(opset=21)
    weight = g.const(np.ones((32, 64)), dtype, "weight")
    scales = g.const(np.full((2, 64), 0.1), np.float32)
    dequantized = g.op("DequantizeLinear", [weight, scales], "dq/DequantizeLinear", axis=0, block_size=16)
    g.output(g.op("MatMul", [g.input(shape=(32, 32)), dequantized], "dense/MatMul"))
    return g


def test_blocks_of_int4_are_legal_and_not_called_int8() -> None:
    assert codes(blocks(ml_dtypes.int4)) == {"V27"}
    assert report(blocks(ml_dtypes.int4)).layers[0].precision == "float"
    assert codes(blocks(np.int8)) == {"V04", "V10"}


def test_fp8_is_not_called_int8() -> None:
    def product(dtype: Any) -> GraphBuilder:
        g = GraphBuilder(opset=19)
        scale, zero = g.const(0.1), g.const(0, dtype)
        q = g.op("QuantizeLinear", [g.input(shape=(32, 32)), scale, zero])
        weight = g.op("DequantizeLinear", [g.const(np.ones((32, 32)), dtype), scale, zero])
        g.output(g.op("MatMul", [g.op("DequantizeLinear", [q, scale, zero]), weight], "dense/MatMul"))
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
