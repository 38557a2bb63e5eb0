"""Channels of weighted operators, bias constants, and merged Adds."""

import re

import numpy as np
import onnx_ir as ir
import pytest

from qat_lib.export import passes
from qat_lib.export.graph import LAYER
from qat_lib.export.passes.bias import (
    channel_axis,
    output_axis,
    output_channels,
    per_channel,
    set_bias,
    weight_shape,
)

SHAPES = [
    ("float[1,2,5,5]", "Conv(x, w)", (4, 2, 3, 3), 0, 4),
    ("float[1,2,5,5]", "Conv<group = 2>(x, w)", (4, 1, 3, 3), 0, 4),
    ("float[1,2,5,5]", "ConvTranspose(x, w)", (2, 4, 3, 3), 1, 4),
    ("float[1,2,5,5]", "ConvTranspose<group = 2>(x, w)", (2, 3, 2, 2), 1, 6),
    ("float[2,6]", "Gemm(x, w)", (6, 4), 1, 4),
    ("float[2,6]", "Gemm<transB = 0>(x, w)", (6, 4), 1, 4),
    ("float[2,6]", "Gemm<transB = 1>(x, w)", (4, 6), 0, 4),
    ("float[2,6]", "MatMul(x, w)", (6, 4), 1, 4),
    ("float[2,6]", "MatMul(x, w)", (6,), 1, None),
    ("float[5,2,6]", "MatMul(x, w)", (5, 6, 4), 1, None),
]


def random(rng, *shape):
    return rng.normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("source", ["initializer", "dequantized", "computed"])
@pytest.mark.parametrize(("data", "call", "shape", "axis", "channels"), SHAPES)
def test_output_channels_are_those_of_a_constant_weight(
    lab, source, data, call, shape, axis, channels
):
    weights = {
        "dequantized": "w = DequantizeLinear(i, s)\n",
        "computed": "w = Relu(v)\n",
        "initializer": "",
    }
    text = f"({data} x) => (float y) {{ {weights[source]} y = {call} }}"
    arrays = {
        "w" if source == "initializer" else "v": np.ones(shape, np.float32),
        "s": np.float32(1),
    }
    node = lab.node(
        lab.build(text, i=np.ones(shape, np.int8), **arrays), call.split("<")[0].split("(")[0]
    )
    known = source != "computed"
    assert weight_shape(node) == (shape if known else None)
    assert channel_axis(node) == axis
    assert output_channels(node) == (channels if known else None)


@pytest.mark.parametrize(
    ("shape", "size", "axis", "fits"),
    [
        ((3, 1, 1), 4, 1, True),
        ((1, 3, 1, 1), 4, 1, True),
        ((1, 1, 1, 1), 4, 1, True),
        ((), 4, 1, True),
        ((1,), 4, 1, True),
        ((3,), 4, 1, False),  # along the width
        ((1, 3, 1), 4, 1, False),
        ((2, 3, 1, 1), 4, 1, False),
        ((2, 1, 1), 4, 1, False),  # another number of channels
        ((1, 1, 3, 1, 1), 4, 1, False),
        ((1, 1, 1, 1, 1), 4, 1, False),
        ((3,), 2, 1, True),
        ((1, 3), 2, 1, True),
        ((3, 1), 2, 1, False),
        ((3, 3), 2, 1, False),
        ((3,), 3, 2, True),
    ],
)
def test_per_channel_takes_what_broadcasts_along_the_channels(lab, shape, size, axis, fits):
    array = np.arange(1, 1 + np.prod(shape), dtype=np.float32).reshape(shape)
    value = lab.build("(float[1] x) => (float[1] y) { y = Add(x, c) }", c=array).graph.initializers[
        "c"
    ]
    found = per_channel(value, 3, size, axis)
    assert (found is not None) == fits
    if found is not None:
        np.testing.assert_array_equal(found, np.broadcast_to(array.ravel(), 3))


def test_per_channel_needs_a_constant(lab):
    model = lab.build("(float[3] x) => (float[3] y) { y = Relu(x) }")
    assert per_channel(model.graph.outputs[0], 3, 1, 0) is None


@pytest.mark.parametrize(
    ("op", "axes"),
    [("Conv", (1, 1)), ("ConvTranspose", (1, 1)), ("Gemm", (1, 3)), ("MatMul", (1, 3))],
)
def test_output_axis_of_a_convolution_and_a_product(op, axes):
    node = ir.node(op, [])
    assert tuple(output_axis(node, size) for size in (2, 4)) == axes


DATA = {"x": (1, 2, 5, 5), "m": (2, 6), "n": (3, 2, 6)}
BIASES = ("b", "c1", "d", "e", "one")


def constants(rng):
    return {
        "w": random(rng, 4, 2, 3, 3),
        "i": rng.integers(-127, 128, (4, 2, 3, 3)).astype(np.int8),
        "s": np.float32(0.02),
        "t": random(rng, 2, 4, 3, 3),
        "b": random(rng, 4),
        "c1": random(rng, 4, 1, 1),
        "c2": random(rng, 2, 1, 1),
        "one": np.float32([0.75]),
        "width": random(rng, 3),
        "k": random(rng, 6, 5),
        "d": random(rng, 1, 5),
        "e": random(rng, 5),
    }


MERGED = {
    "convolution": ("Add(Conv(x, w), c1)", "Conv(x, w, layer_0/bias)"),
    "constant first": ("Add(c1, Conv(x, w))", "Conv(x, w, layer_0/bias)"),
    "with a bias": ("Add(Conv(x, w, b), c1)", "Conv(x, w, layer_0/bias)"),
    "one number": ("Add(Conv(x, w, b), one)", "Conv(x, w, layer_0/bias)"),
    "dequantized": (
        "Add(Conv(x, DequantizeLinear(i, s), b), c1)",
        "Conv(x, DequantizeLinear(i, s), layer_1/bias)",
    ),
    "transposed": ("Add(ConvTranspose(x, t, b), c1)", "ConvTranspose(x, t, layer_0/bias)"),
    "product": ("Add(MatMul(m, k), d)", "Gemm(m, k, layer_0/bias)"),
    "product, constant first": ("Add(d, MatMul(m, k))", "Gemm(m, k, layer_0/bias)"),
    "Gemm": ("Add(Gemm(m, k), d)", "Gemm(m, k, layer_0/bias)"),
    "Gemm with a bias": ("Add(Gemm(m, k, e), d)", "Gemm(m, k, layer_0/bias)"),
    "Gemm with a bias for all": ("Add(Gemm(m, k, one), d)", "Gemm(m, k, layer_0/bias)"),
    "Gemm, factors of one": (
        "Add(Gemm<alpha = 1.0, beta = 1.0>(m, k, e), d)",
        "Gemm<alpha = 1.0, beta = 1.0>(m, k, layer_0/bias)",
    ),
    "Gemm, factor of the product": ("Add(Gemm<alpha = 2.0>(m, k, e), d)", None),
    "Gemm, factor of the bias": ("Add(Gemm<beta = 2.0>(m, k, e), d)", None),
    "Gemm, lesser factor of the bias": ("Add(Gemm<beta = 0.5>(m, k, e), d)", None),
    "no constant": ("Add(Conv(x, w), Conv(x, w))", None),
    "no Add": ("Mul(Conv(x, w), c1)", None),
    "along the width": ("Add(Conv(x, w), width)", None),
    "computed weight": ("Add(Conv(x, Relu(w)), c1)", None),
    "computed bias": ("Add(Conv(x, w, Relu(b)), c1)", None),
    "product of rank three": ("Add(MatMul(n, k), d)", None),
    "Add to a sum": ("Add(Sum(x, x), c2)", None),
    "one number to a sum": ("Add(Sum(x, x), one)", None),
}


@pytest.mark.parametrize("case", MERGED)
def test_merge_bias_moves_channel_constant_into_operator(lab, rng, case):
    before, after = MERGED[case]
    inputs = {
        key: random(rng, *shape) for key, shape in DATA.items() if re.search(rf"\b{key}\b", before)
    }
    model = lab.formula(before, inputs, **constants(rng))
    assert lab.results(model) == [before]
    lowered = lab.check(model, passes.merge_bias, inputs, rtol=1e-5, atol=1e-5)
    assert lab.results(lowered) == [after or before]
    found, given = lab.constants(lowered), lab.constants(model)
    (name,) = found.keys() - given.keys() or (None,)
    # What went into the bias is no longer there.
    kept = {key for key in given if re.search(rf"\b{key}\b", after or before)}
    assert found.keys() - {name} == kept
    if name is not None:
        bias = sum(value.ravel() for key, value in given.items() if key in BIASES)
        np.testing.assert_allclose(found[name], np.broadcast_to(bias, found[name].shape), rtol=1e-6)


def test_merge_bias_goes_on_behind_what_it_leaves(lab, rng):
    """No weight, no Add, an Add that is no bias, unfit operator."""
    before = "Add(Gemm(Add(Gemm<beta = 2.0>(Add(Gemm(Gemm(Relu(m), k, e), q, e), column), q, e), d), q, e), d)"
    model = lab.formula(
        before,
        {"m": random(rng, 2, 6)},
        q=random(rng, 5, 5),
        column=random(rng, 2, 1),
        **constants(rng),
    )
    lowered = lab.check(model, passes.merge_bias, {"m": random(rng, 2, 6)}, rtol=1e-5, atol=1e-5)
    begin, end = before.rsplit("e), d)", 1)
    assert lab.results(lowered) == [begin.removeprefix("Add(") + "layer_6/bias)" + end]


@pytest.mark.parametrize(
    "text",
    [
        "c = Conv(x, w); Add(c, c1); Relu(c)",
        "c = Conv(x, w); c; Add(c, c1)",
        "c = Conv(x, w); Add(c, c)",
    ],
)
def test_merge_bias_leaves_a_tensor_that_something_else_reads(lab, rng, text):
    inputs = {"x": random(rng, 1, 2, 5, 5)}
    model = lab.formula(text, inputs, **constants(rng))
    assert lab.results(lab.check(model, passes.merge_bias, inputs)) == lab.results(model)


def test_merge_bias_needs_the_rank_of_the_product(lab, rng):
    model = lab.formula("Add(MatMul(m, k), d)", {"m": random(rng, 2, 6)}, **constants(rng))
    lab.node(model, "MatMul").outputs[0].shape = None
    assert lab.results(passes.merge_bias(model)) == ["Add(MatMul(m, k), d)"]


def test_merge_bias_keeps_name_and_layer(lab, rng):
    model = lab.formula("Add(MatMul(m, k), d)", {"m": random(rng, 2, 6)}, **constants(rng))
    gemm = lab.node(passes.merge_bias(model), "Gemm")
    assert (gemm.name, gemm.meta[LAYER]) == ("node_0", "layer_0")
    assert list(gemm.outputs[0].shape) == [2, 5]


@pytest.mark.parametrize("bias", [0, 1])
@pytest.mark.parametrize(
    ("known", "written"), [("FLOAT16", "float16"), ("FLOAT", "float32"), (None, "float32")]
)
def test_set_bias_writes_in_the_type_of_the_input(lab, rng, known, written, bias):
    model = lab.formula(
        "Conv(x, w, b)" if bias else "Conv(x, w)", {"x": random(rng, 1, 2, 5, 5)}, **constants(rng)
    )
    model.graph.inputs[0].dtype = None if known is None else ir.DataType[known]
    node = model.graph[0]
    set_bias(model.graph, node, np.arange(4.0))
    assert [value.name for value in node.inputs] == ["x", "w", "layer_0/bias"]
    found = np.asarray(node.inputs[2].const_value)
    assert found.dtype == written
    assert found.tolist() == [0, 1, 2, 3]
