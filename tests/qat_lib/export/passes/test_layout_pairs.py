"""Transposes that are merged, shared, or lifted to the input."""

import numpy as np
import pytest
from graph_text import build, check_rewrite, describe, floats, ints

from qat_lib.export.passes import remove_transposes

pytestmark = pytest.mark.timeout(10)  # seconds: the pass lifts until nothing changes

IMAGE = "(float[2,3,4,5] x) => (float y)"
CONSTANTS = {
    "s": np.float32(0.1),
    "s1": np.float32([0.1]),
    "s5": floats(5),
    "z": np.int8(0),
    "z1": np.int8([0]),
    "z5": np.zeros(5, np.int8),
    "six": np.float32(6),
    "pads": ints(0, 1, 2, 3, 4, 5, 6, 7),
    "turned_pads": ints(0, 3, 1, 2, 4, 7, 5, 6),
    "k5": floats(5),
    "t5": floats(5).reshape(1, 5, 1, 1),
    "k45": floats(4, 5),
    "t45": floats(4, 5).T.reshape(1, 5, 1, 4),
    "whole": floats(2, 3, 4, 5),
    "turned": floats(2, 3, 4, 5).transpose(0, 3, 1, 2),
}

JOINED = {
    "a pair that cancels": (
        "a = MaxPool<kernel_shape=[1,1]>(x)\n b = Transpose<perm=[0,2,3,1]>(a)\n c = Transpose<perm=[0,3,1,2]>(b)\n"
        "y = MaxPool<kernel_shape=[2,2]>(c)",
        "a = MaxPool<kernel_shape=[1,1]>(x)\n y = MaxPool<kernel_shape=[2,2]>(a)",
    ),
    "a pair that turns": (
        "a = MaxPool<kernel_shape=[1,1]>(x)\n b = Transpose<perm=[0,2,3,1]>(a)\n y = Transpose<perm=[1,0,2,3]>(b)",
        "a = MaxPool<kernel_shape=[1,1]>(x)\n y = Transpose<perm=[2,0,3,1]>(a)",
    ),
    "three": (
        "a = Transpose<perm=[0,2,3,1]>(x)\n b = Transpose<perm=[1,0,2,3]>(a)\n y = Transpose<perm=[0,1,3,2]>(b)",
        "y = Transpose<perm=[2,0,1,3]>(x)",
    ),
    "a pair that ends in the output": (
        "a = MaxPool<kernel_shape=[1,1]>(x)\n b = Transpose<perm=[0,2,3,1]>(a)\n y = Transpose<perm=[0,3,1,2]>(b)",
        "y = MaxPool<kernel_shape=[1,1]>(x)",
    ),
    "a pair between input and output": (
        "a = Transpose<perm=[0,2,3,1]>(x)\n y = Transpose<perm=[0,3,1,2]>(a)",
        "y = Transpose<perm=[0,1,2,3]>(x)",
    ),
    "one that turns nothing": ("a = Transpose<perm=[0,1,2,3]>(x)\n y = Exp(a)", "y = Exp(x)"),
    "two without a permutation": ("a = Transpose(x)\n y = Transpose(a)", None),
    "one without a permutation in front": (
        "a = Transpose(x)\n y = Transpose<perm=[1,0,2,3]>(a)",
        None,
    ),
    "one without a permutation behind": (
        "a = Transpose<perm=[1,0,2,3]>(x)\n y = Transpose(a)",
        None,
    ),
}


@pytest.mark.parametrize("case", JOINED)
def test_transposes_in_a_row_join(lab, case):
    check_rewrite(lab, remove_transposes, IMAGE, *JOINED[case])


TWO = "(float[2,3,4,5] x) => (float y, float z)"
SHARED = {
    "a joined one with another reader": (
        "a = Transpose<perm=[0,2,3,1]>(x)\n y = CumSum(a, two)\n b = Transpose<perm=[0,2,3,1]>(a)\n z = CumSum(b, two)",
        "a = Transpose<perm=[0,2,3,1]>(x)\n y = CumSum(a, two)\n b = Transpose<perm=[0,3,1,2]>(x)\n z = CumSum(b, two)",
    ),
    "two equal ones": (
        "a = Transpose<perm=[0,2,3,1]>(x)\n b = Transpose<perm=[0,2,3,1]>(x)\n y = CumSum(a, one)\n z = CumSum(b, two)",
        "a = Transpose<perm=[0,2,3,1]>(x)\n y = CumSum(a, one)\n z = CumSum(a, two)",
    ),
    "two equal ones behind one that is unlike": (
        "n = Transpose(x)\n c = CumSum(n, one)\n d = Transpose(c)\n a = Transpose<perm=[0,2,3,1]>(d)\n"
        "b = Transpose<perm=[0,2,3,1]>(d)\n y = CumSum(a, one)\n z = CumSum(b, two)",
        "n = Transpose(x)\n c = CumSum(n, one)\n d = Transpose(c)\n a = Transpose<perm=[0,2,3,1]>(d)\n"
        "y = CumSum(a, one)\n z = CumSum(a, two)",
    ),
    "two that differ": (
        "a = Transpose<perm=[0,2,3,1]>(x)\n b = Transpose<perm=[0,3,2,1]>(x)\n y = CumSum(a, one)\n z = CumSum(b, two)",
        None,
    ),
    "two of two tensors": (
        "e = CumSum(x, one)\n a = Transpose<perm=[0,2,3,1]>(x)\n b = Transpose<perm=[0,2,3,1]>(e)\n"
        "y = CumSum(a, one)\n z = CumSum(b, two)",
        None,
    ),
    "one is an output": (
        "a = Transpose<perm=[0,2,3,1]>(x)\n y = CumSum(a, one)\n z = Transpose<perm=[0,2,3,1]>(x)",
        None,
    ),
    "an output that is an output already": (
        "y = CumSum(x, one)\n a = Transpose<perm=[0,2,3,1]>(y)\n z = Transpose<perm=[0,3,1,2]>(a)",
        "y = CumSum(x, one)\n z = Transpose<perm=[0,1,2,3]>(y)",
    ),
    "a pair with another output": (
        "e = CumSum(x, one)\n a = Transpose<perm=[0,2,3,1]>(e)\n y = Transpose<perm=[0,3,1,2]>(a)\n"
        "z = MaxPool<kernel_shape=[2,2]>(y)",
        "y = CumSum(x, one)\n z = MaxPool<kernel_shape=[2,2]>(y)",
    ),
}


@pytest.mark.parametrize("case", SHARED)
def test_equal_transposes_of_a_tensor_are_one(lab, case):
    check_rewrite(
        lab, remove_transposes, TWO, *SHARED[case], tolerance=1e-5, one=np.int64(1), two=np.int64(2)
    )


LIFTED = {
    "a cast": ("a = Cast<to=1>(x)", "a = Cast<to=1>(t)"),
    "bounds": ("a = Clip(x, s, six)", "a = Clip(t, s, six)"),
    "a bound": ("a = Clip(x, , six)", "a = Clip(t, , six)"),
    "a quantizer": (
        "q = QuantizeLinear<axis=1>(x, s, z)\n a = DequantizeLinear<axis=1>(q, s, z)",
        "q = QuantizeLinear<axis=1>(t, s, z)\n a = DequantizeLinear<axis=1>(q, s, z)",
    ),
    "a quantizer of a vector": (
        "q = QuantizeLinear<axis=1>(x, s1, z1)\n a = DequantizeLinear<axis=1>(q, s1, z1)",
        "q = QuantizeLinear<axis=1>(t, s1, z1)\n a = DequantizeLinear<axis=1>(q, s1, z1)",
    ),
    "arithmetic": (
        "b = Add(x, k5)\n c = Sub(k45, b)\n d = Mul(whole, c)\n a = Div(d, s)",
        "b = Add(t, t5)\n c = Sub(t45, b)\n d = Mul(turned, c)\n a = Div(d, s)",
    ),
    "padding": ("b = Pad(x, pads)\n a = Relu(b)", "b = Pad(t, turned_pads)\n a = Relu(b)"),
    "padding with a value": ("a = Pad(x, pads, s)", "a = Pad(t, turned_pads, s)"),
    "padding behind an activation": (
        "b = Relu(x)\n a = Pad(b, pads)",
        "b = Relu(t)\n a = Pad(b, turned_pads)",
    ),
    "quantizers of each index": "q = QuantizeLinear<axis=3>(x, s5, z5)\n a = DequantizeLinear<axis=3>(q, s5, z5)",
    "an unknown operator": "a = CumSum(x, one)",
    "an unknown operator further up": "b = CumSum(x, one)\n a = Relu(b)",
    "two tensors": "a = Add(x, x)",
    "two tensors further up": "b = Add(x, x)\n a = Relu(b)",
    "a constant of the larger rank": "b = ReduceSum<keepdims=0>(x, leading)\n a = Add(b, whole)",
    "padding of some axes": "a = Pad(x, two, , last)",
}
TURN = "t = Transpose<perm=[0,3,1,2]>({})\n"


@pytest.mark.parametrize("case", LIFTED)
def test_a_transpose_is_lifted_to_the_input(lab, case):
    texts = LIFTED[case]
    stays = isinstance(texts, str)
    before = f"{texts if stays else texts[0]}\n {TURN.format('a')} y = CumSum(t, one)"
    after = None if stays else f"{TURN.format('x')} {texts[1]}\n y = CumSum(a, one)"
    opset = 18 if "last" in before else 17
    check_rewrite(
        lab,
        remove_transposes,
        IMAGE,
        before,
        after,
        opset=opset,
        tolerance=1e-5,
        one=np.int64(1),
        two=ints(1, 1, 1, 1),
        last=ints(2, 3),
        leading=ints(0, 1, 2),
        **CONSTANTS,
    )


@pytest.mark.parametrize("other", ["z = Exp(a)", "z = Transpose<perm=[0,1,3,2]>(a)", "output"])
def test_shared_tensor_keeps_its_transpose(lab, other):
    body = "a = Relu(x)\n t = Transpose<perm=[0,3,1,2]>(a)\n y = CumSum(t, one)\n"
    body = body.replace("a =", "z =").replace("(a)", "(z)") if other == "output" else body + other
    check_rewrite(lab, remove_transposes, TWO, body, tolerance=1e-5, one=np.int64(1))


def test_two_branches_from_the_input_share_the_lifted_transpose(lab):
    check_rewrite(
        lab,
        remove_transposes,
        TWO,
        "a = Relu(x)\n b = Clip(x, s, six)\n t = Transpose<perm=[0,3,1,2]>(a)\n u = Transpose<perm=[0,3,1,2]>(b)\n"
        "y = CumSum(t, one)\n z = CumSum(u, one)",
        "t = Transpose<perm=[0,3,1,2]>(x)\n a = Relu(t)\n b = Clip(t, s, six)\ny = CumSum(a, one)\n z = CumSum(b, one)",
        tolerance=1e-5,
        one=np.int64(1),
        **CONSTANTS,
    )


PAIR = "(float[2,3,4,5] x, float[{}] g) => (float y)"


@pytest.mark.parametrize("shape", ["5", "1", "4,5", "2,3,4,5"])
@pytest.mark.parametrize("call", ["Add(x, g)", "Add(g, x)"])
def test_transpose_not_lifted_over_two_inputs(lab, shape, call):
    body = f"a = {call}\n t = Transpose<perm=[0,3,1,2]>(a)\n y = CumSum(t, one)"
    check_rewrite(lab, remove_transposes, PAIR.format(shape), body, tolerance=1e-5, one=np.int64(1))


def test_transpose_lifted_over_scalar_input(lab):
    signature = "(float[2,3,4,5] x, float[1] h) => (float y)"
    front = "g = Squeeze(h, zero)\n"
    check_rewrite(
        lab,
        remove_transposes,
        signature,
        front + "a = Mul(g, x)\n t = Transpose<perm=[0,3,1,2]>(a)\n y = CumSum(t, one)",
        front + "t = Transpose<perm=[0,3,1,2]>(x)\n a = Mul(g, t)\n y = CumSum(a, one)",
        tolerance=1e-5,
        one=np.int64(1),
        zero=ints(0),
    )


def test_a_tensor_of_unknown_rank_is_not_lifted_over(lab):
    body = "b = Relu(x)\n a = Exp(b)\n c = Relu(a)\n t = Transpose<perm=[0,3,1,2]>(c)\n y = CumSum(t, one)"
    model = build(lab, f"{IMAGE} {{ {body} }}", {"one": np.int64(1)})
    lab.node(model, "Exp").outputs[0].shape = None
    assert describe(remove_transposes(model)) == describe(model)
