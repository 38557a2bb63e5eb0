"""A BatchNormalization folded into the preceding operator, or left."""

import re

import numpy as np
import onnx_ir as ir
import pytest

from qat_lib.export import passes
from qat_lib.export.graph import FACTOR
from qat_lib.export.passes.fold_batchnorm import batch_norm_of

FOUR = {
    "gamma": np.float32([1.5, -0.5, 2.0, 0.25]),
    "beta": np.float32([0.1, -0.2, 0.3, 0.4]),
    "mean": np.float32([0.5, 1.0, -1.5, 2.0]),
    "var": np.float32([0.25, 1.0, 2.0, 4.0]),
}
NORM = "gamma, beta, mean, var"
DATA = {"x": (1, 2, 5, 5), "m": (2, 6), "n": (3, 4, 6)}


def random(rng, *shape):
    return rng.normal(size=shape).astype(np.float32)


def constants(rng):
    return {
        **FOUR,
        "w": random(rng, 4, 2, 3, 3),
        "g": random(rng, 4, 1, 3, 3),
        "t": random(rng, 2, 4, 3, 3),
        "t2": random(rng, 2, 2, 3, 3),
        "k": random(rng, 6, 4),
        "kt": random(rng, 4, 6),
        "b": random(rng, 4),
        "one": np.float32([0.75]),
        "i": rng.integers(-127, 128, (4, 2, 3, 3)).astype(np.int8),
        "ik": rng.integers(-127, 128, (6, 4)).astype(np.int8),
        "s": np.float32(0.02),
        "s4": np.float32([0.01, 0.02, 0.03, 0.04]),
        "z": np.int8(0),
        "z4": np.zeros(4, np.int8),
        "z6": np.zeros(6, np.int8),
        "s6": np.float32([0.01, 0.02, 0.03, 0.04, 0.05, 0.06]),
    }


def build(lab, rng, text, **more):
    names = text.replace("(", ",").replace(")", ",").replace(" ", "").split(",")
    inputs = {key: random(rng, *shape) for key, shape in DATA.items() if key in names}
    return lab.formula(text, inputs, **(constants(rng) | more)), inputs


def test_batch_norm_of_reads_parameters_and_attributes(lab, rng):
    model, _ = build(lab, rng, f"BatchNormalization<epsilon = 0.5>(Conv(x, w), {NORM})")
    norm = batch_norm_of(lab.node(model, "BatchNormalization"))
    for key, value in {
        "gamma": norm.gamma,
        "beta": norm.beta,
        "mean": norm.mean,
        "var": norm.variance,
    }.items():
        np.testing.assert_array_equal(value, FOUR[key])
    assert norm.epsilon == 0.5
    np.testing.assert_allclose(norm.factor, FOUR["gamma"] / np.sqrt(FOUR["var"] + 0.5), rtol=1e-6)
    np.testing.assert_allclose(norm.offset, FOUR["beta"] - FOUR["mean"] * norm.factor, rtol=1e-6)


def test_batch_norm_of_takes_onnx_defaults(lab, rng):
    model, _ = build(lab, rng, f"BatchNormalization(Conv(x, w), {NORM})")
    assert batch_norm_of(lab.node(model, "BatchNormalization")).epsilon == 1e-5


def test_batch_norm_of_asks_nothing_of_the_data(lab, rng):
    model, _ = build(lab, rng, f"BatchNormalization(w, {NORM})", w=random(rng, 3, 4))
    np.testing.assert_array_equal(batch_norm_of(model.graph[0]).gamma, FOUR["gamma"])


@pytest.mark.parametrize("name", ["gamma", "beta", "mean", "var"])
def test_batch_norm_of_needs_constants(lab, rng, name):
    model, _ = build(
        lab, rng, f"BatchNormalization(Conv(x, w), {NORM.replace(name, f'Abs({name})')})"
    )
    assert batch_norm_of(lab.node(model, "BatchNormalization")) is None


@pytest.mark.parametrize(("mode", "read"), [(0, True), (1, False)])
def test_batch_norm_of_leaves_training(lab, rng, mode, read):
    model, _ = build(lab, rng, f"BatchNormalization<training_mode = {mode}>(Conv(x, w), {NORM})")
    assert (batch_norm_of(lab.node(model, "BatchNormalization")) is not None) == read


FOLDED = {
    "convolution": ("Conv(x, w)", "Conv(x, W, B)"),
    "with a bias": ("Conv(x, w, b)", "Conv(x, W, B)"),
    "depthwise": ("Conv<group = 2>(x, g)", "Conv<group = 2>(x, W, B)"),
    "transposed": ("ConvTranspose(x, t)", "ConvTranspose(x, W, B)"),
    "transposed, one group": (
        "ConvTranspose<group = 1>(x, t, b)",
        "ConvTranspose<group = 1>(x, W, B)",
    ),
    "transposed, groups": ("ConvTranspose<group = 2>(x, t2)", None),
    "MatMul": ("MatMul(m, k)", "Gemm(m, W, B)"),
    "MatMul of rank three": ("MatMul(n, k)", None),
    "Gemm": ("Gemm(m, k, b)", "Gemm(m, W, B)"),
    "Gemm with one bias": ("Gemm(m, k, one)", "Gemm(m, W, B)"),
    "Gemm without bias": ("Gemm(m, k)", "Gemm(m, W, B)"),
    "Gemm, transposed": ("Gemm<transB = 1>(m, kt)", "Gemm<transB = 1>(m, W, B)"),
    "Gemm, factors of one": (
        "Gemm<alpha = 1.0, beta = 1.0>(m, k, b)",
        "Gemm<alpha = 1.0, beta = 1.0>(m, W, B)",
    ),
    "Gemm, factor of the product": ("Gemm<alpha = 2.0>(m, k, b)", None),
    "Gemm, factor of the bias": ("Gemm<beta = 2.0>(m, k, b)", None),
    "computed bias": ("Conv(x, w, Abs(b))", None),
    "computed weight": ("Conv(x, Abs(w))", None),
    "no layer": ("Relu(Conv(x, w))", None),
    "dequantized": (
        "Conv(x, DequantizeLinear(i, s, z))",
        "Conv(x, DequantizeLinear<axis = 0>(I, S, Z), B)",
    ),
    "dequantized product": (
        "MatMul(m, DequantizeLinear(ik, s4, z4))",
        "Gemm(m, DequantizeLinear<axis = 1>(I, S, Z), B)",
    ),
    "scales along the inputs": ("MatMul(m, DequantizeLinear<axis = 0>(ik, s6, z6))", None),
    "computed scale": ("Conv(x, DequantizeLinear(i, Abs(s), z))", None),
}
# What a fold writes: letter of the expected result -> end of the constant's name.
WRITTEN = {"W": "/weight", "B": "/bias", "I": "/integers", "S": "/scale", "Z": "/zero_point"}


@pytest.mark.parametrize("case", FOLDED)
def test_fold_batchnorm(lab, rng, case):
    before, after = FOLDED[case]
    model, inputs = build(lab, rng, f"BatchNormalization({before}, {NORM})")
    lowered = lab.check(model, passes.fold_batchnorm, inputs, rtol=2e-5, atol=2e-5)
    if after is None:
        assert lab.results(lowered) == [f"BatchNormalization({before}, {NORM})"]
        assert lab.constants(lowered).keys() == lab.constants(model).keys()
        return
    written = {
        key: name
        for name in lab.constants(lowered)
        for key, end in WRITTEN.items()
        if name.endswith(end)
    }
    assert lab.results(lowered) == [
        re.sub(r"\b[WBISZ]\b", lambda letter: written[letter[0]], after)
    ]
    # Weights, biases and parameters that were folded in are no longer there.
    assert lab.constants(lowered).keys() == {
        written[key] for key in re.findall(r"\b[WBISZ]\b", after)
    }


def test_fold_batchnorm_needs_as_many_channels(lab, rng):
    """One mean for four channels is left.

    ONNX does not allow it, and this library does not write it.
    """
    one = {key: value[:1] for key, value in FOUR.items()}
    model, _ = build(lab, rng, f"BatchNormalization(Conv(x, w), {NORM})", **one)
    assert lab.results(passes.fold_batchnorm(model)) == lab.results(model)


def test_fold_batchnorm_needs_the_rank_of_a_products_data(lab, rng):
    model, _ = build(lab, rng, f"BatchNormalization(MatMul(Relu(m), k), {NORM})")
    lab.node(model, "Relu").outputs[0].shape = None
    assert lab.results(passes.fold_batchnorm(model)) == lab.results(model)


def test_fold_batchnorm_goes_on_behind_what_it_leaves(lab, rng):
    """Another operator, a BatchNormalization without layer, and unusable scales."""
    left = f"BatchNormalization(Relu(MatMul(m, DequantizeLinear<axis = 0>(ik, s6))), {NORM})"
    left = f"BatchNormalization(MatMul({left}, DequantizeLinear<axis = 0>(i4, s4)), {NORM})"
    integers = rng.integers(-127, 128, (4, 4)).astype(np.int8)
    model, inputs = build(
        lab,
        rng,
        f"BatchNormalization(Gemm({left}, k4, b), {NORM})",
        i4=integers,
        k4=random(rng, 4, 4),
    )
    lowered = lab.check(model, passes.fold_batchnorm, inputs, rtol=2e-5, atol=2e-4)
    (result,) = lab.results(lowered)
    assert result == f"Gemm({left}, layer_7/weight, layer_7/bias)"


@pytest.mark.parametrize(
    "text",
    [
        f"c = Conv(x, w); BatchNormalization(c, {NORM}); Relu(c)",
        f"c = Conv(x, w); c; BatchNormalization(c, {NORM})",
        f"c = Conv(x, w); BatchNormalization(c, {NORM}); BatchNormalization(c, {NORM})",
    ],
)
def test_fold_batchnorm_leaves_a_layer_that_something_else_reads(lab, rng, text):
    model, inputs = build(lab, rng, text)
    assert lab.results(lab.check(model, passes.fold_batchnorm, inputs)) == lab.results(model)


def quantized(lab, rng, gamma, scale, integers):
    """Return a normalized product with an INT8 weight of two rows.

    The variance is 1, so that gamma is the factor.
    """
    count = len(gamma)
    arrays = {
        "gamma": np.float32(gamma),
        "beta": np.zeros(count, np.float32),
        "mean": np.zeros(count, np.float32),
        "var": np.ones(count, np.float32),
        "q": np.int8(integers),
        "step": np.float32(scale),
        "z": np.zeros(np.shape(scale), np.int8),
    }
    text = f"BatchNormalization<epsilon = 0.0>(MatMul(v, DequantizeLinear(q, step, z)), {NORM})"
    return lab.formula(text, {"v": random(rng, 3, 2)}, **arrays)


LEAST = 2.0**-126


@pytest.mark.parametrize(
    ("gamma", "scale", "new_scale", "signs"),
    [
        ([2.0, 0.5], 0.25, [0.5, 0.125], [1, 1]),
        ([2.0, -0.5], [0.25, 0.5], [0.5, 0.25], [1, -1]),
        ([-1.0, -0.5], [0.25, 0.5], [0.25, 0.25], [-1, -1]),
        ([0.0, 3.0], [0.25, 0.5], [0.25, 1.5], [0, 1]),  # a dead channel keeps its scale
        ([0.0, 0.0], [0.25, 0.5], [0.25, 0.5], [0, 0]),
        ([LEAST, -LEAST], [1.0, 1.5], [LEAST, 1.5 * LEAST], [1, -1]),
        ([LEAST, -LEAST], [0.75, 0.5], [0.75, 0.5], [0, 0]),  # would be flushed to zero
    ],
)
def test_fold_batchnorm_keeps_the_trained_integers(lab, rng, gamma, scale, new_scale, signs):
    model = quantized(lab, rng, gamma, scale, [[127, -127], [3, -5]])
    lowered = passes.fold_batchnorm(model)
    node = lab.node(lowered, "DequantizeLinear")
    integers, found, zero_point = (np.asarray(value.const_value) for value in node.inputs)
    np.testing.assert_array_equal(
        integers, [[127 * signs[0], -127 * signs[1]], [3 * signs[0], -5 * signs[1]]]
    )
    np.testing.assert_array_equal(found, np.float32(new_scale))
    assert (integers.dtype, found.dtype, zero_point.dtype) == (np.int8, np.float32, np.int8)
    np.testing.assert_array_equal(zero_point, [0, 0])
    np.testing.assert_array_equal(node.meta[FACTOR], np.where(np.equal(signs, 0), 0, gamma))
    # Integers that stay are not stored again.
    assert ("q" in lowered.graph.initializers) == (signs == [1, 1])


@pytest.mark.parametrize(
    ("gamma", "folded"), [([-1.0, 1.0], False), ([1.0, -1.0], True), ([1.0, 1.0], True)]
)
def test_fold_batchnorm_leaves_least_integer_sign_change(lab, rng, gamma, folded):
    model = quantized(lab, rng, gamma, [0.25, 0.5], [[-128, -127], [3, -5]])
    lowered = lab.check(model, passes.fold_batchnorm, {"v": random(rng, 3, 2)}, rtol=1e-6)
    assert (lab.ops(lowered)["BatchNormalization"] == 0) == folded


def test_fold_batchnorm_leaves_scales_along_the_inputs(lab, rng):
    """As many of them as there are outputs."""
    model = quantized(lab, rng, [1.0, 2.0], [0.25, 0.5], [[1, 2], [3, 4]])
    attributes = lab.node(model, "DequantizeLinear").attributes
    attributes["axis"] = ir.AttrInt64("axis", 0)
    lowered = lab.check(model, passes.fold_batchnorm, {"v": random(rng, 3, 2)})
    assert lab.ops(lowered)["BatchNormalization"] == 1


def test_fold_batchnorm_multiplies_the_factors_of_two(lab, rng):
    model = quantized(lab, rng, [2.0, -3.0], 0.25, [[127, -127], [3, -5]])
    lab.node(model, "DequantizeLinear").meta[FACTOR] = np.asarray([-5.0, 7.0])
    node = lab.node(passes.fold_batchnorm(model), "DequantizeLinear")
    assert node.meta[FACTOR].tolist() == [-10.0, -21.0]


@pytest.mark.parametrize("readers", [2, 3])
def test_fold_batchnorm_gives_a_shared_weight_a_copy(lab, rng, readers):
    others = "".join(
        f"; MatMul(m, w{index})".replace(f"w{index}", "d") for index in range(readers - 1)
    )
    text = f"d = DequantizeLinear<axis = 1>(ik, s4, z4); BatchNormalization(MatMul(m, d), {NORM}){others}"
    model, inputs = build(lab, rng, text)
    lab.node(model, "DequantizeLinear").meta[FACTOR] = np.ones(4)
    lowered = lab.check(model, passes.fold_batchnorm, inputs, rtol=2e-5, atol=2e-5)
    results = lab.results(lowered)
    assert results[1:] == ["MatMul(m, DequantizeLinear<axis = 1>(ik, s4, z4))"] * (readers - 1)
    assert lab.ops(lowered)["DequantizeLinear"] == 2
    copy, kept = sorted(
        (n for n in lowered.graph if n.op_type == "DequantizeLinear"),
        key=lambda n: n.inputs[1].name == "s4",
    )
    assert kept.meta[FACTOR].tolist() == [1, 1, 1, 1]
    np.testing.assert_allclose(
        copy.meta[FACTOR], FOUR["gamma"] / np.sqrt(FOUR["var"] + 1e-5), rtol=1e-6
    )
    assert list(copy.outputs[0].shape) == [6, 4]
    assert copy.outputs[0].dtype == kept.outputs[0].dtype
