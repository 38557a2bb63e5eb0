"""Dense layers of rank 3 and above as one product.

Other products stay.
"""

import numpy as np
import onnx_ir as ir
import pytest
from graph_text import assert_same, build, check_rewrite, floats, ints

from qat_lib.export.passes import merge_batched_dense

OPEN = "(float[N,4,3] x) => (float y)"
BODY = "a = Reshape(x, rows)\n m = MatMul(a, w)\n b = Reshape(m, back)\n y = Exp(b)"
DONE = "b = MatMul(x, w)\n y = Exp(b)"
CONSTANTS = {
    "rows": ints(-1, 3),
    "back": ints(-1, 4, 5),
    "w": floats(3, 5),
    "i": np.arange(15, dtype=np.int8).reshape(3, 5),
    "s": np.float32(0.1),
    "z": np.int8(0),
    "five": ints(5),
    "first": ints(0),
    "second": ints(1),
    "two": ints(0, 1),
    "none": ints(0),
    "doubled": ints(2, 1, 1),
}


def check(lab, signature, before, after=None, **more):
    check_rewrite(
        lab, merge_batched_dense, signature, before, after, tolerance=1e-5, **{**CONSTANTS, **more}
    )


def test_a_dense_layer_becomes_one_product(lab):
    check(lab, OPEN, BODY, DONE)
    check(lab, OPEN, BODY.replace(" b =", " y =").replace("\n y = Exp(b)", ""), "y = MatMul(x, w)")
    check(lab, OPEN.replace("N,4", "N,2,4"), BODY, DONE, back=ints(-1, 2, 4, 5))


def test_a_quantized_dense_layer_becomes_one_product(lab):
    weight = "w = DequantizeLinear(i, s, z)\n"
    check(lab, OPEN, weight + BODY, weight + DONE)


STAY = {
    "a matrix": ("(float[4,3] x) => (float y)", BODY, {"back": ints(4, 5)}),
    "an axis regrouped": ("(float[2,4,3] x) => (float y)", BODY, {"back": ints(4, 2, 5)}),
    "an axis more": ("(float[2,4,3] x) => (float y)", BODY, {"back": ints(2, 2, 2, 5)}),
    "other features": ("(float[2,4,6] x) => (float y)", BODY, {"back": ints(2, 8, 5)}),
    "features joined": (
        "(float[2,4,3] x) => (float y)",
        BODY,
        {"rows": ints(2, 12), "back": ints(2, 4, 5), "w": floats(12, 20)},
    ),
    "features that only return together": (
        "(float[2,4,3] x) => (float y)",
        BODY,
        {"back": ints(2, 4, 5, 1)},
    ),
    "other outputs": ("(float[2,4,3] x) => (float y)", BODY, {"back": ints(2, 20)}),
    "another operator than MatMul": (OPEN, BODY.replace("MatMul", "Gemm"), {}),
    "another operator in front": (OPEN, BODY.replace("Reshape(x, rows)", "Flatten<axis=2>(x)"), {}),
    "another operator behind": (OPEN, BODY.replace("Reshape(m, back)", "Unsqueeze(m, first)"), {}),
    "a computed weight": (OPEN, "v = Exp(w)\n" + BODY.replace("(a, w)", "(a, v)"), {}),
    "a weight of three axes": (
        "(float[2,4,3] x) => (float y)",
        BODY,
        {"w": floats(1, 3, 5), "back": ints(2, 4, 5)},
    ),
    "a vector": ("(float[2,4,3] x) => (float y)", BODY, {"w": floats(3), "back": ints(2, 4, 1)}),
}


@pytest.mark.parametrize("case", STAY)
def test_other_products_stay(lab, case):
    signature, text, constants = STAY[case]
    check(lab, signature, text, **constants)


@pytest.mark.parametrize(
    "text",
    [
        BODY + "\n z = Exp(a)",
        BODY + "\n z = Exp(m)",
        BODY.replace("a =", "z =").replace("(a,", "(z,"),
        BODY.replace("m =", "z =").replace("(m,", "(z,"),
    ],
)
def test_what_is_read_between_stays(lab, text):
    check(lab, "(float[N,4,3] x) => (float y, float z)", text)


def test_the_next_product_is_met_after_one_that_stays(lab):
    signature = "(float[2,4,3] x) => (float y, float z)"
    second = "c = Reshape(x, rows)\n n = MatMul(c, w)\n z = Reshape(n, back)\n"
    for first, constants in (
        ("y = MatMul(x, w)\n", {}),
        (
            "a = Reshape(x, rows)\n m = MatMul(a, w)\n b = Reshape(m, back)\n s = ReduceMax(a)\n y = Add(b, s)\n",
            {},
        ),
        (
            "a = Reshape(x, rows)\n m = MatMul(a, v)\n y = Reshape(m, again)\n",
            {"v": floats(3, 3), "again": ints(4, 6)},
        ),
        (
            "a = Reshape(x, rows)\n m = MatMul(a, v)\n y = Reshape(m, again)\n",
            {"v": floats(3), "again": ints(4, 2)},
        ),
    ):
        check(lab, signature, first + second, first + "z = MatMul(x, w)", **constants)


# Two open axes: the Reshape's target says what they become.
TWO = "(float[N,T,3] x) => (float[A,B,C] y)"
SHAPE = "s = Shape(x)\n n = Gather(s, first)\n t = Gather(s, second)\n d = Mul(s, doubled)\n e = Gather(d, first)\n"
TARGETS = {
    "n, t, five": True,
    "t, n, five": False,
    "n, n, five": False,
    "e, t, five": False,
    "n, none, five": False,
    "n, t, five, one": False,
    "n, five": False,
}


@pytest.mark.parametrize("target", TARGETS)
def test_two_open_axes_are_followed_through_the_computed_shape(lab, target):
    text = SHAPE + f"k = Concat<axis=0>({target})\n" + BODY.replace("back", "k")
    rank = target.count(",") + 1
    signature = TWO.replace("A,B,C", ",".join("ABCD"[:rank]))
    model = build(lab, f"{signature} {{ {text} }}", {**CONSTANTS, "one": ints(1)})
    lab.node(model, "Reshape", 1).outputs[0].shape = ir.Shape([*[None] * (rank - 1), 5])
    if not TARGETS[target]:
        assert_same(merge_batched_dense(model), model)
        return
    lowered = lab.check(model, merge_batched_dense, {"x": floats(2, 4, 3)}, rtol=1e-6)
    assert lab.order(lowered) == ["MatMul", "Exp"]


def test_batched_dense_open_and_known_axis(lab):
    for known, merged in ((4, True), (2, False)):
        signature = "(float[N,T,4,3] x) => (float[A,B,C,D] y)"
        text = SHAPE + "k = Concat<axis=0>(n, t, known, five)\n" + BODY.replace("back", "k")
        model = build(lab, f"{signature} {{ {text} }}", {**CONSTANTS, "known": ints(known)})
        lab.node(model, "Reshape", 1).outputs[0].shape = ir.Shape([None, None, known, 5])
        assert (lab.ops(merge_batched_dense(model))["Reshape"] == 0) is merged


def test_a_target_that_is_not_computed_from_the_tensor(lab):
    signature = "(float[N,T,3] x, int64[3] n) => (float[A,B,C] y)"
    model = build(lab, f"{signature} {{ {BODY.replace('back', 'n')} }}", CONSTANTS)
    lab.node(model, "Reshape", 1).outputs[0].shape = ir.Shape([None, None, 5])
    assert_same(merge_batched_dense(model), model)


@pytest.mark.parametrize(("name", "index"), [("Exp", 0), ("Reshape", 1)])
def test_tensors_of_unknown_rank(lab, name, index):
    model = build(lab, f"{OPEN} {{ e = Exp(x)\n {BODY.replace('(x', '(e')} }}", CONSTANTS)
    lab.node(model, name, index).outputs[0].shape = None
    assert_same(merge_batched_dense(model), model)
