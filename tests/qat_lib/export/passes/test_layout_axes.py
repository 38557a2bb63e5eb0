"""A Squeeze or Unsqueeze that moves above a preceding Transpose."""

import numpy as np
import pytest
from graph_text import assert_same, build, check_rewrite, floats, ints

from qat_lib.export.passes import remove_transposes
from qat_lib.export.passes.layout_axes import single_axis

FRONT = "r = MaxPool<kernel_shape = [1,1]>(x)\n t = Transpose<perm = {}>(r)\n"
SQUEEZED = {
    "the height": ([0, 2, 3, 1], "at1", "at2", [0, 2, 1]),
    "the height from behind": ([0, 2, 3, 1], "at_3", "at2", [0, 2, 1]),
    "the only first axis": ([2, 0, 3, 1], "at0", "at2", [0, 2, 1]),
    "the only last axis": ([0, 3, 1, 2], "at3", "at2", [0, 2, 1]),
}
AXES = {
    "at0": ints(0),
    "at1": ints(1),
    "at2": ints(2),
    "at3": ints(3),
    "at4": ints(4),
    "at_1": ints(-1),
    "at_3": ints(-3),
    "scalar": np.int64(1),
}


@pytest.mark.parametrize("case", SQUEEZED)
def test_a_squeeze_moves_above_a_transpose(lab, case):
    perm, axis, moved, left = SQUEEZED[case]
    before = FRONT.format(perm) + f"s = Squeeze(t, {axis})\n y = CumSum(s, one)"
    after = (
        FRONT.split("t =")[0]
        + f"q = Squeeze(r, {moved})\n s = Transpose<perm = {left}>(q)\n y = CumSum(s, one)"
    )
    check_rewrite(
        lab,
        remove_transposes,
        "(float[2,3,1,5] x) => (float y)",
        before,
        after,
        tolerance=1e-5,
        one=np.int64(1),
        **AXES,
    )


# x is (2, 3, 4, 5), t (2, 4, 5, 3): an axis in front of the second, behind it, and at the end.
UNSQUEEZED = {
    "in front of all": ("at0", "at0", [0, 1, 3, 4, 2]),
    "in front of the height": ("at1", "at2", [0, 2, 3, 4, 1]),
    "in front of the channels": ("at3", "at1", [0, 3, 4, 1, 2]),
    "at the end": ("at4", "at4", [0, 2, 3, 1, 4]),
    "at the end, counted from there": ("at_1", "at4", [0, 2, 3, 1, 4]),
}


@pytest.mark.parametrize("case", UNSQUEEZED)
def test_an_unsqueeze_moves_above_a_transpose(lab, case):
    axis, moved, left = UNSQUEEZED[case]
    before = FRONT.format([0, 2, 3, 1]) + f"u = Unsqueeze(t, {axis})\n y = CumSum(u, one)"
    after = (
        FRONT.split("t =")[0]
        + f"q = Unsqueeze(r, {moved})\n u = Transpose<perm = {left}>(q)\n y = CumSum(u, one)"
    )
    check_rewrite(
        lab,
        remove_transposes,
        "(float[2,3,4,5] x) => (float y)",
        before,
        after,
        tolerance=1e-5,
        one=np.int64(1),
        **AXES,
    )


@pytest.mark.parametrize("axis", ["at3", "at_1"])
def test_an_unsqueeze_moves_above_a_transpose_of_three_axes(lab, axis):
    front = "r = MaxPool<kernel_shape = [1]>(x)\n"
    before = (
        front + f"t = Transpose<perm = [0,2,1]>(r)\n u = Unsqueeze(t, {axis})\n y = CumSum(u, one)"
    )
    after = (
        front + "q = Unsqueeze(r, at3)\n u = Transpose<perm = [0,2,1,3]>(q)\n y = CumSum(u, one)"
    )
    signature = "(float[2,3,4] x) => (float y)"
    check_rewrite(
        lab, remove_transposes, signature, before, after, tolerance=1e-5, one=np.int64(1), **AXES
    )


STAY = {
    "the output": "y = Squeeze(t, at1)",
    "all axes of one element": "s = Squeeze(t)\n y = CumSum(s, one)",
    "two axes": "s = Squeeze(t, two)\n y = CumSum(s, one)",
    "a computed axis": "s = Unsqueeze(t, n)\n y = CumSum(s, one)",
    "no transpose in front": "s = Squeeze(r, at2)\n y = CumSum(s, one)\n z = Exp(t)",
    "a transpose without permutation": "v = Transpose(t)\n s = Squeeze(v, at2)\n y = CumSum(s, one)",
    "a transpose of the axis": "n1 = Transpose<perm = [0]>(n)\n s = Unsqueeze(x, n1)\n y = CumSum(s, one)",
}


@pytest.mark.parametrize("case", STAY)
def test_other_squeezes_stay(lab, case):
    signature = "(float[1,3,1,5] x, int64[1] n) => (float[A,B,C] y)"
    constants = {**AXES, "one": np.int64(1), "two": ints(0, 1)}
    model = build(lab, f"{signature} {{ {FRONT.format([0, 2, 3, 1])} {STAY[case]} }}", constants)
    wanted = model
    if case == "a transpose of the axis":  # which turns nothing
        text = "s = Unsqueeze(x, n)\n y = CumSum(s, one)"
        wanted = build(lab, f"{signature} {{ {text} }}", constants)
    assert_same(remove_transposes(model), wanted)


@pytest.mark.parametrize(
    ("axes", "axis"),
    [("at1", 1), ("at_1", 3), ("at_3", 1), ("scalar", 1), ("two", None), ("none", None)],
)
def test_single_axis(lab, axes, axis):
    text = "(float[1,1,1,1] x) => (float[A,B,C] y) { y = Squeeze(x, axes) }"
    values = {**AXES, "two": ints(0, 1), "none": ints()}
    model = build(lab, text, {"axes": values[axes]})
    assert single_axis(model.graph[0], 4) == axis


def test_no_axis_is_not_a_single_one(lab):
    assert (
        single_axis(build(lab, "(float[1,1] x) => (float[A] y) { y = Squeeze(x) }", {}).graph[0], 2)
        is None
    )
    model = build(lab, "(float[2,2] x) => (float y) { y = Add(x, c) }", {"c": floats(2)})
    assert single_axis(model.graph[0], 2) is None
