"""Weights reordered for channels-first features, and products behind a Transpose."""

import numpy as np
import pytest
from graph_text import assert_same, build, check_rewrite, floats, ints

from qat_lib.export.graph import FACTOR, ORIGINAL, QUANTIZER, TENSOR
from qat_lib.export.passes import reorder_flattened_weights

IMAGE = "(float[N,3,2,4] x) => (float y)"
FRONT = "t = Transpose<perm = [0,2,3,1]>(x)\n f = Reshape(t, flat)\n"
PLAIN = "f = Reshape(x, flat)\n"
WEIGHT = floats(24, 5)
# Row (height, width, channel) of a weight becomes row (channel, height, width).
MOVED = WEIGHT.reshape(2, 4, 3, 5).transpose(2, 0, 1, 3).reshape(24, 5)
INTEGERS = np.arange(120, dtype=np.int8).reshape(24, 5)
TURNED = INTEGERS.reshape(2, 4, 3, 5).transpose(2, 0, 1, 3).reshape(24, 5)
CONSTANTS = {
    "flat": ints(-1, 24),
    "w": WEIGHT,
    "m": MOVED,
    "i": INTEGERS,
    "j": TURNED,
    "v": floats(24),
    "bias": floats(5),
    "s": np.float32(0.1),
    "s1": np.float32([0.1]),
    "z": np.int8(0),
    "z1": np.int8([0]),
    "s5": floats(5),
    "z5": np.zeros(5, np.int8),
    "s24": floats(24),
    "z24": np.zeros(24, np.int8),
    "six": np.float32(6),
}
PRODUCTS = {
    "MatMul": ("y = MatMul(f, w)", "y = MatMul(f, m)"),
    "Gemm": ("y = Gemm(f, w, bias)", "y = Gemm(f, m, bias)"),
    "Gemm, not transposed": (
        "y = Gemm<transA = 0, transB = 0>(f, w)",
        "y = Gemm<transA = 0, transB = 0>(f, m)",
    ),
    "activations": (
        "a = Relu(f)\n b = Clip(a, s, six)\n c = Identity(b)\n y = MatMul(c, w)",
        "a = Relu(f)\n b = Clip(a, s, six)\n c = Identity(b)\n y = MatMul(c, m)",
    ),
    "a quantizer": (
        "q = QuantizeLinear(f, s, z)\n d = DequantizeLinear(q, s, z)\n y = MatMul(d, w)",
        "q = QuantizeLinear(f, s, z)\n d = DequantizeLinear(q, s, z)\n y = MatMul(d, m)",
    ),
    "integers": (
        "k = DequantizeLinear<axis = 1>(i, s5, z5)\n y = MatMul(f, k)",
        "k = DequantizeLinear<axis = 1>(j, s5, z5)\n y = MatMul(f, k)",
    ),
    "integers of the last axis": (
        "k = DequantizeLinear<axis = -1>(i, s5, z5)\n y = MatMul(f, k)",
        "k = DequantizeLinear<axis = -1>(j, s5, z5)\n y = MatMul(f, k)",
    ),
    "integers of the default axis": (
        "k = DequantizeLinear(i, s5, z5)\n y = MatMul(f, k)",
        "k = DequantizeLinear(j, s5, z5)\n y = MatMul(f, k)",
    ),
    "integers without a zero point": (
        "k = DequantizeLinear<axis = 0>(i, s)\n y = MatMul(f, k)",
        "k = DequantizeLinear<axis = 0>(j, s)\n y = MatMul(f, k)",
    ),
    "integers of one scale": (
        "k = DequantizeLinear<axis = 0>(i, s1, z1)\n y = MatMul(f, k)",
        "k = DequantizeLinear<axis = 0>(j, s1, z1)\n y = MatMul(f, k)",
    ),
}


@pytest.mark.parametrize("case", PRODUCTS)
def test_a_weight_takes_features_as_the_convolution_gives_them(lab, case):
    before, after = PRODUCTS[case]
    check_rewrite(
        lab,
        reorder_flattened_weights,
        IMAGE,
        FRONT + before,
        PLAIN + after,
        tolerance=1e-4,
        **CONSTANTS,
    )


def test_a_flatten_is_as_good_as_a_reshape(lab):
    before, after = (
        FRONT.replace("Reshape(t, flat)", "Flatten(t)"),
        PLAIN.replace("Reshape(x, flat)", "Flatten(x)"),
    )
    before, after = before + "y = MatMul(f, w)", after + "y = MatMul(f, m)"
    check_rewrite(lab, reorder_flattened_weights, IMAGE, before, after, tolerance=1e-4, **CONSTANTS)


@pytest.mark.parametrize("perm", [(0, 3, 1, 2), (0, 3, 2, 1), (0, 1, 3, 2), (0, 2, 1, 3)])
def test_rows_follow_any_permutation_of_the_features(lab, perm):
    before = FRONT.replace("0,2,3,1", ",".join(map(str, perm))) + "y = MatMul(f, w)"
    model = build(lab, f"{IMAGE} {{ {before} }}", CONSTANTS)
    lowered = lab.check(model, reorder_flattened_weights, {"x": floats(2, 3, 2, 4)}, rtol=1e-5)
    assert lab.order(lowered) == ["Reshape", "MatMul"]


def test_a_moved_weight_keeps_its_name(lab):
    model = build(
        lab, f"{IMAGE} {{ {FRONT} y = MatMul(f, kernel) }}", {**CONSTANTS, "kernel": WEIGHT}
    )
    assert lab.node(reorder_flattened_weights(model), "MatMul").inputs[1].name.startswith("kernel")


STAY = {
    "another operator than Reshape": "t = Transpose<perm = [0,2,3,1]>(x)\n f = Exp(t)\n y = Reshape(f, flat)",
    "an operator that is not elementwise": FRONT + "a = Softmax(f)\n y = MatMul(a, w)",
    "an activation at the end": FRONT + "y = Relu(f)",
    "scales of features": FRONT + "q = QuantizeLinear<axis = 1>(f, s24, z24)\n"
    "d = DequantizeLinear<axis = 1>(q, s24, z24)\n y = MatMul(d, w)",
    "a transposed weight": FRONT + "y = Gemm<transB = 1>(f, turned)",
    "transposed features": FRONT + "y = Gemm<transA = 1>(f, two)",
    "a vector": FRONT + "y = MatMul(f, v)",
    "a weight of three axes": FRONT + "y = MatMul(f, cube)",
    "the second operand": FRONT + "y = MatMul(rows, f)",
    "the bias": FRONT + "y = Gemm(square, wide, f)",
    "both operands": FRONT + "y = MatMul(f, f)",
    "a computed weight": FRONT + "k = Exp(w)\n y = MatMul(f, k)",
    "scales of rows": FRONT + "k = DequantizeLinear<axis = 0>(i, s24, z24)\n y = MatMul(f, k)",
    "scales of rows, counted from the end": FRONT
    + "k = DequantizeLinear<axis = -2>(i, s24, z24)\n y = MatMul(f, k)",
    "integers of three axes": FRONT
    + "k = DequantizeLinear<axis = 2>(n, s5, z5)\n y = MatMul(f, k)",
    "integers of one axis": FRONT + "k = DequantizeLinear(h, s, z)\n y = MatMul(f, k)",
    "computed integers": FRONT
    + "n8 = Cast<to = 3>(w)\n k = DequantizeLinear(n8, s5, z5)\n y = MatMul(f, k)",
    "the batch moves": "t = Transpose<perm = [1,0,2,3]>(x)\n f = Reshape(t, flat)\n y = MatMul(f, w)",
    "other rows": "t = Transpose<perm = [0,2,3,1]>(x)\n f = Reshape(t, short)\n y = MatMul(f, less)",
    "three axes": "t = Transpose<perm = [0,2,3,1]>(x)\n f = Reshape(t, long)\n y = MatMul(f, less)",
    "no permutation": "t = Transpose(x)\n f = Reshape(t, flat)\n y = MatMul(f, w)",
    "no transpose": "t = Exp(x)\n f = Reshape(t, flat)\n y = MatMul(f, w)",
}


@pytest.mark.parametrize("case", STAY)
def test_a_transpose_stays_where_rows_cannot_follow(lab, case):
    constants = {
        **CONSTANTS,
        "turned": floats(5, 24),
        "two": floats(2, 5),
        "cube": floats(2, 24, 5),
        "rows": floats(3, 2),
        "square": floats(2, 2),
        "wide": floats(2, 24),
        "n": np.ones((2, 24, 5), np.int8),
        "h": np.ones(24, np.int8),
        "short": ints(-1, 3),
        "less": floats(3, 5),
        "long": ints(-1, 8, 3),
    }
    signature = IMAGE.replace("N,3,2,4", "24,3,2,4" if "both" in case else "2,3,2,4")
    if "batch" in case:
        signature = IMAGE.replace("N,3,2,4", "3,2,3,4")
    text = STAY[case].replace("flat", "few") if "both" in case else STAY[case]
    check_rewrite(lab, reorder_flattened_weights, signature, text, **constants, few=ints(-1, 24))


TWO = "(float[2,3,2,4] x) => (float y, float z)"


@pytest.mark.parametrize(
    "text",
    [
        FRONT + "z = Exp(t)\n y = MatMul(f, w)",
        FRONT + "z = Exp(f)\n y = MatMul(f, w)",
        FRONT + "a = Relu(f)\n z = Exp(a)\n y = MatMul(a, w)",
        FRONT + "z = Relu(f)\n y = MatMul(z, w)",
        FRONT + "k = DequantizeLinear(i, s5, z5)\n z = Exp(k)\n y = MatMul(f, k)",
        FRONT + "z = DequantizeLinear(i, s5, z5)\n y = MatMul(f, z)",
    ],
)
def test_a_transpose_stays_where_something_else_reads(lab, text):
    check_rewrite(lab, reorder_flattened_weights, TWO, text, **CONSTANTS)


@pytest.mark.parametrize("size", [12, 24])  # a height of 1, and of 2
def test_a_transpose_of_open_features_stays(lab, size):
    signature = "(float[N,3,H,4] x) => (float[N,5] y)"
    constants = {"flat": ints(-1, size), "w": floats(size, 5)}
    model = build(lab, f"{signature} {{ {FRONT} y = MatMul(f, w) }}", constants)
    assert_same(reorder_flattened_weights(model), model)


@pytest.mark.parametrize("name", ["Reshape", "Exp"])
def test_a_transpose_of_unknown_shape_stays(lab, name):
    text = "e = Exp(x)\n" + FRONT.replace("(x)", "(e)") + "y = MatMul(f, w)"
    model = build(lab, f"{IMAGE} {{ {text} }}", CONSTANTS)
    lab.node(model, name).outputs[0].shape = None
    assert_same(reorder_flattened_weights(model), model)


def test_the_next_transpose_is_met_after_one_that_stays(lab):
    before = "a = Transpose<perm = [1,0,2,3]>(x)\n z = Exp(a)\n" + FRONT + "y = MatMul(f, w)"
    after = "a = Transpose<perm = [1,0,2,3]>(x)\n z = Exp(a)\n" + PLAIN + "y = MatMul(f, m)"
    check_rewrite(lab, reorder_flattened_weights, TWO, before, after, tolerance=1e-4, **CONSTANTS)
    before = (
        FRONT
        + "y = MatMul(f, v)\n b = Transpose<perm = [0,2,3,1]>(x)\n g = Reshape(b, flat)\n z = MatMul(g, w)"
    )
    after = FRONT + "y = MatMul(f, v)\n g = Reshape(x, flat)\n z = MatMul(g, m)"
    check_rewrite(lab, reorder_flattened_weights, TWO, before, after, tolerance=1e-4, **CONSTANTS)
    before = before.replace("y = MatMul(f, v)", "y = Exp(f)")
    after = after.replace("y = MatMul(f, v)", "y = Exp(f)")
    check_rewrite(lab, reorder_flattened_weights, TWO, before, after, tolerance=1e-4, **CONSTANTS)
    before = before.replace("0,2,3,1]>(x)\n f", "1,0,2,3]>(x)\n f").replace(
        "y = Exp(f)", "y = MatMul(f, w)"
    )
    model = build(lab, f"{TWO} {{ {before} }}", {**CONSTANTS})
    assert lab.ops(reorder_flattened_weights(model))["Transpose"] == 1


def test_reordered_tensors_lose_the_name_of_their_layer(lab):
    model = build(
        lab,
        f"{IMAGE} {{ e = Exp(x)\n {FRONT.replace('(x)', '(e)')} a = Relu(f)\n y = MatMul(a, w) }}",
        CONSTANTS,
    )
    for node in model.graph:
        node.outputs[0].meta[TENSOR] = node.op_type
    lowered = reorder_flattened_weights(model)
    assert [node.outputs[0].meta.get(TENSOR) for node in lowered.graph] == [
        "Exp",
        None,
        None,
        "MatMul",
    ]


@pytest.mark.parametrize("known", [True, False])
def test_moved_integers_keep_what_is_known_of_them(lab, known):
    model = build(
        lab, f"{IMAGE} {{ {FRONT} k = DequantizeLinear(i, s5, z5)\n y = MatMul(f, k) }}", CONSTANTS
    )
    meta = lab.node(model, "DequantizeLinear").meta
    if known:
        meta[ORIGINAL], meta[QUANTIZER] = INTEGERS + 1, "dense"
    node = lab.node(reorder_flattened_weights(model), "DequantizeLinear")
    assert node.inputs[0].name == ("dense/integers" if known else "weight/integers")
    assert (ORIGINAL in node.meta) is known
    if known:
        assert np.array_equal(node.meta[ORIGINAL], TURNED + 1)


def test_a_weight_into_which_a_factor_was_folded_stays(lab):
    model = build(
        lab, f"{IMAGE} {{ {FRONT} k = DequantizeLinear(i, s5, z5)\n y = MatMul(f, k) }}", CONSTANTS
    )
    lab.node(model, "DequantizeLinear").meta[FACTOR] = np.ones(5)
    assert_same(reorder_flattened_weights(model), model)
