"""How operators move above a Transpose, and what prevents it."""

import numpy as np
import pytest
from graph_text import build, check_rewrite, describe, floats, ints

from qat_lib.export.passes import remove_transposes
from qat_lib.export.passes.layout_rules import sink_rule

# x comes channels first. A pool stands in front of each Transpose, so that none of them is lifted
# to the input.
IMAGE = "(float[2,3,4,5] x) => (float y)"
FRONT = "r = MaxPool<kernel_shape = [1,1]>(x)\n t = Transpose<perm = [0,2,3,1]>(r)\n"
PLAIN = "r = MaxPool<kernel_shape = [1,1]>(x)\n"
BEHIND = "y = Transpose<perm = [0,2,3,1]>(a)"

CONSTANTS = {
    "s": np.float32(0.1),
    "s1": np.float32([0.1]),
    "s3": np.float32([0.1, 0.2, 0.3]),
    "z": np.int8(0),
    "z1": np.int8([0]),
    "z3": np.zeros(3, np.int8),
    "zero": np.float32(0),
    "six": np.float32(6),
    "c1": np.full((1, 1), 2, np.float32),
    "c3": floats(3),
    "c43": floats(5, 3),
    "p3": floats(3).reshape(1, 3, 1, 1),
    "p43": floats(5, 3).T.reshape(1, 3, 1, 5),
    "big": floats(2, 1, 1, 1, 1),
    "one5": floats(1, 1, 1, 1, 1),
    "c5": floats(2, 4, 5, 1),
    "p5": floats(2, 4, 5, 1).transpose(0, 3, 1, 2),
    "wide": floats(2, 4, 5, 3),
    "first": floats(2, 4, 5, 3).transpose(0, 3, 1, 2),
    "sizes": ints(1, 2),
}
MOVED = {
    "an activation": ("y = Tanh(t)", "a = Tanh(r)\n"),
    "bounds": ("y = Clip(t, zero, six)", "a = Clip(r, zero, six)\n"),
    "a bound": ("y = Clip(t, , six)", "a = Clip(r, , six)\n"),
    "a quantizer": ("y = QuantizeLinear<axis=1>(t, s, z)", "a = QuantizeLinear<axis=1>(r, s, z)\n"),
    "a quantizer of one channel": (
        "y = QuantizeLinear<axis=0>(t, s1, z1)",
        "a = QuantizeLinear<axis=0>(r, s1, z1)\n",
    ),
    "a quantizer without a zero point": (
        "b = QuantizeLinear<axis=1>(t, s)\n y = Cast<to=1>(b)",
        "b = QuantizeLinear<axis=1>(r, s)\n a = Cast<to=1>(b)\n",
    ),
    "a scalar": ("y = Add(t, s)", "a = Add(r, s)\n"),
    "one element": ("y = Add(t, c1)", "a = Add(r, c1)\n"),
    "a channel's constant": ("y = Sub(t, c3)", "a = Sub(r, p3)\n"),
    "a constant in front": ("y = Sub(c3, t)", "a = Sub(p3, r)\n"),
    "a constant of two axes": ("y = Mul(t, c43)", "a = Mul(r, p43)\n"),
    "itself": ("y = Mul(t, t)", "a = Mul(r, r)\n"),
    "softmax": ("y = Softmax(t)", "a = Softmax<axis=1>(r)\n"),
    "softmax along the height": ("y = Softmax<axis=1>(t)", "a = Softmax<axis=2>(r)\n"),
    "log softmax": ("y = LogSoftmax(t)", "a = LogSoftmax<axis=1>(r)\n"),
    "hardmax": ("y = Hardmax(t)", "a = Hardmax<axis=1>(r)\n"),
    "a concat with a constant": ("y = Concat<axis=-1>(t, c5)", "a = Concat<axis=1>(r, p5)\n"),
    "a concat along the width": ("y = Concat<axis=2>(wide, t)", "a = Concat<axis=3>(first, r)\n"),
    "a sum of axes kept": ("y = ReduceSum(t, sizes)", "a = ReduceSum(r, moved)\n"),
    "padding": ("y = Pad(t, pads)", "a = Pad(r, moved_pads)\n"),
    "padding with a value": ("y = Pad(t, pads, six)", "a = Pad(r, moved_pads, six)\n"),
    "a slice of the first axes": (
        "y = Slice(t, starts, ends)",
        "a = Slice(r, starts, ends, first_axes)\n",
    ),
    "a slice": ("y = Slice(t, starts, ends, sizes)", "a = Slice(r, starts, ends, moved)\n"),
    "a slice of the last axes": (
        "y = Slice(t, starts, ends, last)",
        "a = Slice(r, starts, ends, moved_last)\n",
    ),
    "a slice with steps": (
        "y = Slice(t, starts, ends, last, steps)",
        "a = Slice(r, starts, ends, moved_last, steps)\n",
    ),
}
CONSTANTS |= {
    "moved": ints(2, 3),
    "pads": ints(0, 1, 2, 3, 4, 5, 6, 7),
    "moved_pads": ints(0, 3, 1, 2, 4, 7, 5, 6),
    "starts": ints(1, 0),
    "ends": ints(2, 3),
    "first_axes": ints(0, 2),
    "last": ints(-1, -2),
    "moved_last": ints(1, 3),
    "steps": ints(1, 2),
}


@pytest.mark.parametrize("case", MOVED)
def test_an_operator_moves_above_a_transpose(lab, case):
    before, after = MOVED[case]
    signature = IMAGE.replace("float y", "int8 y") if before.startswith("y = Quantize") else IMAGE
    check_rewrite(
        lab, remove_transposes, signature, FRONT + before, PLAIN + after + BEHIND, **CONSTANTS
    )


SPLIT = "a, b = Split<axis={axis}>({x}, {sizes})\n"


@pytest.mark.parametrize("sizes", ["halves", "thirds"])
def test_a_split_gets_a_transpose_behind_each_part(lab, sizes):
    check_rewrite(
        lab,
        remove_transposes,
        "(float[2,3,4,6] x) => (float y, float z)",
        FRONT + SPLIT.format(axis=2, x="t", sizes=sizes) + "y = Exp(a)\n z = Identity(b)",
        PLAIN
        + SPLIT.format(axis=3, x="r", sizes=sizes)
        + "c = Exp(a)\n y = Transpose<perm = [0,2,3,1]>(c)\n d = Identity(b)\n z = Transpose<perm = [0,2,3,1]>(d)",
        halves=ints(3, 3),
        thirds=ints(2, 4),
    )


def test_a_split_without_an_axis_splits_the_batch(lab):
    body = "b, c = Split{}({})\n"
    check_rewrite(
        lab,
        remove_transposes,
        IMAGE,
        FRONT + body.format("", "t") + "y = Concat<axis=1>(b, c)",
        PLAIN + body.format("<axis=0>", "r") + "a = Concat<axis=2>(b, c)\n" + BEHIND,
    )


LEFT = {
    "a quantizer of each channel": "y = QuantizeLinear<axis=3>(t, s3, z3)",
    "a quantizer of each channel without zero points": "a = QuantizeLinear<axis=3>(t, s3)\n y = Cast<to=1>(a)",
    "a quantizer of a computed scale": "k = Softmax<axis=0>(s3)\n a = QuantizeLinear<axis=3>(t, k)\n y = Cast<to=1>(a)",
    "a constant of more axes": "y = Add(t, big)",
    "one element of more axes": "y = Add(t, one5)",
    "axes in another order": "y = ReduceMean<axes = [2], keepdims = 0>(t)",
    "a mean of all": "y = ReduceMean(t)",
    "a sum of all": "y = ReduceSum(t)",
    "a matrix of one vector": "m = MatMul(t, v)\n y = Exp(m)",
    "matrices": "m = MatMul(t, batch)\n y = Exp(m)",
    "a dense layer at the end": "y = MatMul(t, w)",
    "an operator without a rule": "y = CumSum(t, axis)",
    "a transpose without permutation": "a = Transpose(r)\n y = Exp(a)",
}
CONSTANTS |= {
    "v": floats(3),
    "w": floats(3, 2),
    "batch": floats(4, 3, 2),
    "axis": np.int64(1),
}


@pytest.mark.parametrize("case", LEFT)
def test_an_operator_that_a_transpose_cannot_pass_stays(lab, case):
    body = LEFT[case]
    signature = IMAGE.replace("float y", "int8 y") if body.startswith("y = Quantize") else IMAGE
    front = PLAIN if "(r)" in body else FRONT
    check_rewrite(lab, remove_transposes, signature, front + body, tolerance=1e-5, **CONSTANTS)


def test_only_standard_operators_have_a_rule(lab):
    model = lab.build(
        "(float[2] x) => (float[2] y) { a = Relu(x)\n b = Add(a, a)\n c = CumSum(b, zero)\n y = Exp(c) }",
        zero=np.int64(0),
    )
    relu, add, scan, _ = model.graph
    assert None not in (sink_rule(relu), sink_rule(add))
    assert sink_rule(scan) is None
    for node in (relu, add):
        node.domain = "ai.onnx"
        assert sink_rule(node) is not None
        node.domain = "com.microsoft"
        assert sink_rule(node) is None


REDUCED = {
    "the image": (
        "ReduceMean<axes = [1,2], keepdims = 0>",
        "ReduceMean<axes = [2,3], keepdims = 0>",
    ),
    "the image from behind": (
        "ReduceMean<axes = [-2,-3], keepdims = 0>",
        "ReduceMean<axes = [2,3], keepdims = 0>",
    ),
    "the channels": ("ReduceMax<axes = [3], keepdims = 0>", "ReduceMax<axes = [1], keepdims = 0>"),
}


@pytest.mark.parametrize("case", REDUCED)
def test_a_reduction_that_drops_its_axes_needs_no_transpose(lab, case):
    before, after = REDUCED[case]
    check_rewrite(
        lab, remove_transposes, IMAGE, FRONT + f"y = {before}(t)", PLAIN + f"y = {after}(r)"
    )


def test_a_reduction_that_keeps_its_axes_keeps_their_order(lab):
    before = FRONT + "y = ReduceMean<axes = [2], keepdims = 1>(t)"
    after = PLAIN + "a = ReduceMean<axes = [3], keepdims = 1>(r)\n" + BEHIND
    check_rewrite(lab, remove_transposes, IMAGE, before, after)


@pytest.mark.parametrize("opset", [13, 18])
def test_axes_may_be_an_operand(lab, opset):
    before = FRONT + "y = ReduceSum<keepdims = 0>(t, last)"
    after = PLAIN + "y = ReduceSum<keepdims = 0>(r, moved)"
    check_rewrite(
        lab,
        remove_transposes,
        IMAGE,
        before,
        after,
        opset=opset,
        last=ints(-1, -2),
        moved=ints(1, 3),
    )


COMPUTED = "(float[2,3,4,5] x, int64[K] n) => (float y)"


@pytest.mark.parametrize(
    "body",
    [
        "y = ReduceSum(t, n)",
        "y = Slice(t, n, ends)",
        "y = Slice(t, starts, ends, n)",
        "y = Pad(t, n)",
        "y = Pad(t, two, , last)",
    ],
)
def test_what_is_computed_cannot_be_renamed(lab, body):
    opset = 18 if "Pad" in body else 17
    model = build(
        lab, f"{COMPUTED} {{ {FRONT}{body} }}", {**CONSTANTS, "two": ints(1, 1, 1, 1)}, opset
    )
    assert describe(remove_transposes(model)) == describe(model)


def test_slice_with_computed_starts_uses_axes(lab):
    text = "(float[2,3,4,5] x, int64[2] n) => (float[2,P,Q,3] y)"
    model = build(lab, f"{text} {{ {FRONT} y = Slice(t, n, ends, sizes) }}", CONSTANTS)
    assert describe(remove_transposes(model)) == describe(model)


def test_tensors_of_unknown_shape_move_too(lab):
    """The shape behind the operator may be unknown and stays unknown."""
    model = build(lab, f"{IMAGE} {{ {FRONT} e = Tanh(t)\n y = Exp(e) }}", {})
    lab.node(model, "Tanh").outputs[0].shape = None
    lowered = remove_transposes(model)
    assert lab.order(lowered) == ["MaxPool", "Tanh", "Exp", "Transpose"]
    assert lab.node(lowered, "Tanh").outputs[0].shape is None


def test_a_moved_constant_keeps_its_name(lab):
    model = build(lab, f"{IMAGE} {{ {FRONT} y = Add(t, c3) }}", CONSTANTS)
    assert lab.node(remove_transposes(model), "Add").inputs[1].name.startswith("c3")
