"""Dense layers on images that become 1x1 convolutions."""

import numpy as np
import pytest
from graph_text import build, check_rewrite, describe, floats

from qat_lib.export.graph import ORIGINAL
from qat_lib.export.passes import remove_transposes

# x comes channels first. A pool stands in front of each Transpose, so that none of them is lifted
# to the input.
IMAGE = "(float[2,3,4,5] x) => (float y)"
FRONT = "r = MaxPool<kernel_shape = [1,1]>(x)\n t = Transpose<perm = [0,2,3,1]>(r)\n"
PLAIN = "r = MaxPool<kernel_shape = [1,1]>(x)\n"
BEHIND = "y = Transpose<perm = [0,2,3,1]>(a)"
SCALES = {
    "s": np.float32(0.1),
    "z": np.int8(0),
    "s2": np.float32([0.1, 0.2]),
    "z2": np.zeros(2, np.int8),
    "s3": np.float32([0.1, 0.2, 0.3]),
    "z3": np.zeros(3, np.int8),
}
DENSE = FRONT + "{} m = MatMul(t, w)\n y = Exp(m)"
CONV = PLAIN + "{} c = Conv<kernel_shape = [1,1]>(r, w)\n a = Exp(c)\n" + BEHIND
INTEGERS = np.arange(6, dtype=np.int8).reshape(3, 2)
QUANTIZED = {
    "an axis of outputs": ("<axis = 1>(i, s2, z2)", True),
    "the default axis": ("(i, s2, z2)", True),
    "one scale": ("<axis = 1>(i, s, z)", True),
    "one scale along the inputs": ("<axis = 0>(i, s, z)", True),
    "an axis of inputs": ("<axis = 0>(i, s3, z3)", False),
    "weights of more axes": ("<axis = 2>(i3, s2, z2)", False),
    "weights of one axis": ("<axis = 0>(i1, s3, z3)", False),
}


def test_a_dense_layer_on_an_image_becomes_a_convolution(lab):
    weight = floats(3, 2)
    check_rewrite(
        lab, remove_transposes, IMAGE, DENSE.format("w = Identity(k)\n"), tolerance=1e-5, k=weight
    )
    conv = CONV.replace("(r, w)", "(r, k)").format("")
    check_rewrite(
        lab,
        remove_transposes,
        IMAGE,
        DENSE.format("").replace("(t, w)", "(t, n)"),
        conv,
        tolerance=1e-5,
        n=weight,
        k=weight.T[:, :, None, None],
    )


@pytest.mark.parametrize("case", QUANTIZED)
def test_quantized_dense_on_image_becomes_convolution(lab, case):
    call, moves = QUANTIZED[case]
    after = "w = DequantizeLinear<axis = 0>(k, " + call.split(", ", 1)[1] + "\n"
    check_rewrite(
        lab,
        remove_transposes,
        IMAGE,
        DENSE.format(f"w = DequantizeLinear{call}\n"),
        CONV.format(after) if moves else None,
        tolerance=1e-5,
        i=INTEGERS,
        i3=np.arange(24, dtype=np.int8).reshape(4, 3, 2),
        i1=INTEGERS[:, 0],
        k=INTEGERS.T[:, :, None, None],
        **SCALES,
    )


@pytest.mark.parametrize("known", [True, False])
def test_the_integers_of_a_weight_move_with_it(lab, known):
    text = DENSE.format("w = DequantizeLinear<axis = 1>(i, s, z)\n")
    model = build(lab, f"{IMAGE} {{ {text} }}", {**SCALES, "i": INTEGERS})
    if known:
        lab.node(model, "DequantizeLinear").meta[ORIGINAL] = INTEGERS + 1
    lab.node(model, "DequantizeLinear").meta["more"] = "kept"
    meta = lab.node(remove_transposes(model), "DequantizeLinear").meta
    assert meta["more"] == "kept"
    assert (ORIGINAL in meta) is known
    if known:
        assert np.array_equal(meta[ORIGINAL], (INTEGERS + 1).T[:, :, None, None])


@pytest.mark.parametrize(
    "weight",
    [
        "w = Transpose<perm=[1,0]>(g)",
        "w = DequantizeLinear(n, s, z)",
        "w = DequantizeLinear(i, f, z)",
    ],
)
def test_a_dense_layer_of_a_computed_weight_stays(lab, weight):
    signature = "(float[2,3,4,5] x, float[2,3] g, int8[3,2] n, float f) => (float y)"
    model = build(
        lab, f"{signature} {{ {DENSE.format(weight + chr(10))} }}", {**SCALES, "i": INTEGERS}
    )
    assert describe(remove_transposes(model)) == describe(model)


@pytest.mark.parametrize("perm", ["0,2,1,3", "0,3,1,2", "0,1,3,2"])
def test_a_dense_layer_behind_another_transpose_stays(lab, perm):
    body = DENSE.format("").replace("0,2,3,1", perm)
    check_rewrite(
        lab,
        remove_transposes,
        "(float[2,3,3,3] x) => (float y)",
        body,
        tolerance=1e-5,
        w=floats(3, 2),
    )


def test_a_moved_weight_keeps_its_name(lab):
    model = build(
        lab, f"{IMAGE} {{ {DENSE.format('').replace('w)', 'kernel)')} }}", {"kernel": floats(3, 2)}
    )
    assert lab.node(remove_transposes(model), "Conv").inputs[1].name.startswith("kernel")
