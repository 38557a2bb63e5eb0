"""Which axis repeats become one Resize, and which don't."""

import numpy as np
import pytest
from graph_text import assert_same, build, check_rewrite, describe, floats, ints

from qat_lib.export.passes import use_nearest_resize

pytestmark = pytest.mark.timeout(10)  # seconds: the pass follows repeats to the last

IMAGE = "(float[b,4,5,3] x) => (float y)"
POWER = 'Resize<mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor">'
OTHER = 'Resize<mode = "nearest", coordinate_transformation_mode = "half_pixel", nearest_mode = "round_prefer_floor">'


def repeat(source, result, axis, times, shape, name=""):
    """Return the nodes that repeat an axis; arguments name the constants."""
    u, t = f"{result}_u{name}", f"{result}_t{name}"
    return f"{u} = Unsqueeze({source}, {axis})\n{t} = Tile({u}, {times})\n{result} = Reshape({t}, {shape})\n"


def resized(kind=POWER, end="y = Exp(r)"):
    return f"n = Transpose<perm = [0,3,1,2]>(x)\n m = {kind}(n, , scales)\n r = Transpose<perm = [0,2,3,1]>(m)\n {end}"


CONSTANTS = {
    "one": ints(1),
    "two": ints(2),
    "third_last": ints(-3),
    "three": ints(3),
    "rows2": ints(1, 1, 2, 1, 1),
    "rows3": ints(1, 1, 3, 1, 1),
    "columns3": ints(1, 1, 1, 3, 1),
    "tall": ints(-1, 8, 5, 3),
    "taller": ints(-1, 24, 5, 3),
    "wide": ints(-1, 4, 15, 3),
    "whole": ints(-1, 8, 15, 3),
}
REPEATS = {
    "rows": (repeat("x", "r", "two", "rows2", "tall"), POWER, [1, 1, 2, 1]),
    "rows, counted from behind": (
        repeat("x", "r", "third_last", "rows2", "tall"),
        POWER,
        [1, 1, 2, 1],
    ),
    "columns": (repeat("x", "r", "three", "columns3", "wide"), OTHER, [1, 1, 1, 3]),
    "both": (
        repeat("x", "q", "two", "rows2", "tall") + repeat("q", "r", "three", "columns3", "whole"),
        OTHER,
        [1, 1, 2, 3],
    ),
    "rows twice": (
        repeat("x", "q", "two", "rows2", "tall") + repeat("q", "r", "two", "rows3", "taller"),
        OTHER,
        [1, 1, 6, 1],
    ),
}


@pytest.mark.parametrize("case", REPEATS)
def test_repeats_become_a_resize(lab, case):
    before, kind, scales = REPEATS[case]
    check_rewrite(
        lab,
        use_nearest_resize,
        IMAGE,
        before + "y = Exp(r)",
        resized(kind),
        scales=np.float32(scales),
        **CONSTANTS,
    )


def test_repeats_whose_shape_is_read_between(lab):
    """The shape that the conversion computes goes with what computes it."""
    before = repeat("x", "q", "two", "rows2", "tall") + "s = Shape(q)\n k = Mul(s, tripled)\n"
    before += repeat("q", "r", "three", "columns3", "k") + "y = Exp(r)"
    model = build(
        lab,
        f"(float[2,4,5,3] x) => (float[2,8,15,3] y) {{ {before} }}",
        {**CONSTANTS, "tripled": ints(1, 1, 3, 1)},
    )
    lowered = lab.check(model, use_nearest_resize, {"x": floats(2, 4, 5, 3)})
    assert lab.order(lowered) == ["Transpose", "Resize", "Transpose", "Exp"]


def test_repeats_that_end_in_the_output(lab):
    before = repeat("x", "y", "two", "rows2", "tall")
    after = resized(end="").replace("r = ", "y = ")
    check_rewrite(
        lab, use_nearest_resize, IMAGE, before, after, **CONSTANTS, scales=np.float32([1, 1, 2, 1])
    )


def test_repeats_of_a_volume(lab):
    before = repeat("x", "r", "four", "depth", "deep") + "y = Exp(r)"
    after = f"n = Transpose<perm = [0,4,1,2,3]>(x)\n m = {POWER}(n, , scales)\n"
    after += "r = Transpose<perm = [0,2,3,4,1]>(m)\n y = Exp(r)"
    constants = {
        "four": ints(4),
        "depth": ints(1, 1, 1, 1, 4, 1),
        "deep": ints(2, 3, 4, 20, 6),
        "scales": np.float32([1, 1, 1, 1, 4]),
    }
    check_rewrite(
        lab, use_nearest_resize, "(float[2,3,4,5,6] x) => (float y)", before, after, **constants
    )


def test_repeats_of_a_sequence_stay(lab):
    text = repeat("x", "r", "two", "times", "long") + "y = Exp(r)"
    constants = {"two": ints(2), "times": ints(1, 1, 2, 1), "long": ints(2, 8, 3)}
    check_rewrite(lab, use_nearest_resize, "(float[2,4,3] x) => (float y)", text, **constants)


TWO = "(float[b,4,5,3] x) => (float y, float z)"


@pytest.mark.parametrize("reader", ["z = Exp(q)", ""])
def test_what_is_read_between_two_repeats_is_made(lab, reader):
    between = "q" if reader else "z"
    before = repeat("x", between, "two", "rows2", "tall") + repeat(
        between, "r", "three", "columns3", "whole"
    )
    first = (
        f"n = Transpose<perm = [0,3,1,2]>(x)\n m = {POWER}(n, , rows)\n "
        f"{between} = Transpose<perm = [0,2,3,1]>(m)\n"
    )
    second = f"k = {OTHER}(m, , columns)\n r = Transpose<perm = [0,2,3,1]>(k)\n y = Exp(r)\n"
    scales = {"rows": np.float32([1, 1, 2, 1]), "columns": np.float32([1, 1, 1, 3])}
    check_rewrite(
        lab,
        use_nearest_resize,
        TWO,
        before + "y = Exp(r)\n" + reader,
        first + second + reader,
        **scales,
        **CONSTANTS,
    )


STAY = {
    "the batch": repeat("x", "r", "one", "batches", "many") + "y = Exp(r)",
    "the channels": repeat("x", "r", "four", "channels", "deep") + "y = Exp(r)",
    "rows, then channels": repeat("x", "q", "two", "rows2", "tall")
    + repeat("q", "r", "four", "channels", "tall_deep")
    + "y = Exp(r)",
    "rows, then the batch": repeat("x", "q", "two", "rows2", "tall")
    + repeat("q", "r", "one", "batches", "tall_many")
    + "y = Exp(r)",
    "the batch and the channels": repeat("x", "q", "one", "batches", "many")
    + repeat("q", "r", "four", "channels", "many_deep")
    + "y = Exp(r)",
    "the whole": repeat("x", "r", "zero", "wholes", "many") + "y = Exp(r)",
    "all rows": repeat("x", "r", "one", "rows_in_front", "tall") + "y = Exp(r)",
    "another axis too": repeat("x", "r", "two", "rows_and_columns", "whole") + "y = Exp(r)",
    "another axis": repeat("x", "r", "three", "rows2", "tall") + "y = Exp(r)",
    "another shape": repeat("x", "r", "two", "rows2", "turned") + "y = Exp(r)",
    "fewer axes": repeat("x", "r", "two", "rows2", "flat") + "y = Exp(r)",
    "more axes": repeat("x", "r", "two", "rows2", "more") + "y = Exp(r)",
    "two new axes": "u = Unsqueeze(x, both)\n t = Tile(u, two_axes)\n r = Reshape(t, tall)\n y = Exp(r)",
    "no new axis": "u = Exp(x)\n t = Tile(u, plain)\n r = Reshape(t, tall)\n y = Exp(r)",
    "another operator than Tile": "u = Unsqueeze(x, two)\n t = Expand(u, expanded)\n r = Reshape(t, tall)\n y = Exp(r)",
    "another operator than Reshape": "u = Unsqueeze(x, one)\n t = Tile(u, rows2)\n r = Exp(t)\n y = Exp(r)",
    "no reader": "u = Unsqueeze(x, two)\n y = Tile(u, rows2)",
}


@pytest.mark.parametrize("case", STAY)
def test_other_repeats_stay(lab, case):
    constants = {
        "zero": ints(0),
        "four": ints(4),
        "both": ints(2, 3),
        "batches": ints(1, 2, 1, 1, 1),
        "many": ints(4, 4, 5, 3),
        "channels": ints(1, 1, 1, 1, 2),
        "deep": ints(2, 4, 5, 6),
        "many_deep": ints(4, 4, 5, 6),
        "tall_deep": ints(2, 8, 5, 6),
        "tall_many": ints(4, 8, 5, 3),
        "wholes": ints(2, 1, 1, 1, 1),
        "rows_in_front": ints(1, 2, 1, 1, 1),
        "rows_and_columns": ints(1, 1, 2, 3, 1),
        "turned": ints(-1, 5, 8, 3),
        "flat": ints(-1, 8, 15),
        "more": ints(-1, 8, 5, 3, 1),
        "two_axes": ints(1, 1, 2, 1, 1, 1),
        "plain": ints(1, 2, 1, 1),
        "expanded": ints(2, 4, 2, 5, 3),
    }
    signature = "(float[2,4,5,3] x) => (float y)"
    check_rewrite(lab, use_nearest_resize, signature, STAY[case], **{**CONSTANTS, **constants})


@pytest.mark.parametrize(
    "text",
    [
        "u = Unsqueeze(x, two)\n t = Tile(u, rows2)\n r = Reshape(t, tall)\n y = Exp(r)\n z = Exp(u)",
        "u = Unsqueeze(x, two)\n t = Tile(u, rows2)\n r = Reshape(t, tall)\n y = Exp(r)\n z = Exp(t)",
        "z = Unsqueeze(x, two)\n t = Tile(z, rows2)\n r = Reshape(t, tall)\n y = Exp(r)",
    ],
)
def test_repeats_whose_parts_are_read_stay(lab, text):
    check_rewrite(lab, use_nearest_resize, TWO, text, **CONSTANTS)


def test_repeats_of_a_computed_count_stay(lab):
    signature = "(float[2,4,5,3] x, int64[5] n) => (float[2,8,5,3] r)"
    check_rewrite(
        lab, use_nearest_resize, signature, repeat("x", "r", "two", "n", "tall"), **CONSTANTS
    )


# Sizes that are open: the Reshape's target says what it makes of them.
OPEN = "(float[b,h,5,3] x) => (float[B,H,W,3] y)"
TARGETS = {
    "copied": ("columns3", "three", "zeros", True),
    "computed": ("rows2", "two", "k", True),
    "computed for columns": ("columns3", "three", "c", True),
    "computed for another axis": ("columns3", "three", "k", False),
    "one inferred": ("columns3", "three", "inferred", False),
    "other constants": ("columns3", "three", "others", False),
    "fewer axes": ("columns3", "three", "fewer", False),
    "not computed from the image": ("columns3", "three", "n", False),
}


@pytest.mark.parametrize("case", TARGETS)
def test_repeats_of_an_image_of_open_size(lab, case):
    times, axis, shape, resizes = TARGETS[case]
    front = "s = Shape(x)\n k = Mul(s, doubled)\n c = Mul(s, tripled)\n"
    signature = OPEN
    if case == "fewer axes":
        signature = OPEN.replace("B,H,W,3", "B,H,W")
    if case == "not computed from the image":
        signature = OPEN.replace(") =>", ", int64[4] n) =>")
    scales = [1, 1, 1, 3] if times == "columns3" else [1, 1, 2, 1]
    before = front + repeat("x", "r", axis, times, shape) + "y = Exp(r)"
    check_rewrite_open(
        lab,
        signature,
        before,
        resized(OTHER if 3 in scales else POWER) if resizes else None,
        scales,
    )


def check_rewrite_open(lab, signature, before, after, scales):
    """Like check_rewrite, for shapes that ONNX can't infer.

    They are those of the tensor that the Resize makes.
    """
    constants = {
        **CONSTANTS,
        "doubled": ints(1, 2, 1, 1),
        "tripled": ints(1, 1, 3, 1),
        "zeros": ints(0, 0, 15, 3),
        "inferred": ints(0, -1, 15, 3),
        "others": ints(0, 0, 5, 9),
        "fewer": ints(0, 0, 45),
        "scales": np.float32(scales),
    }
    if after is None:
        check_rewrite(lab, use_nearest_resize, signature, before, **constants)
        return
    model = build(lab, f"{signature} {{ {before} }}", constants)
    lowered = use_nearest_resize(model)
    wanted = build(lab, f"{signature} {{ {after} }}", constants)
    assert [line.split("=", 1)[1] for line in describe(lowered)] == [
        line.split("=", 1)[1] for line in describe(wanted)
    ]
    x = floats(2, 4, 5, 3)
    np.testing.assert_array_equal(lab.run(lowered, x=x)[0], lab.run(model, x=x)[0])


@pytest.mark.parametrize("height", ["4", "h"])
def test_one_open_size_follows_from_the_others(lab, height):
    before = repeat("x", "r", "two", "rows2", "target") + "y = Exp(r)"
    constants = {**CONSTANTS, "target": ints(2, -1, 5, 3), "scales": np.float32([1, 1, 2, 1])}
    signature = f"(float[2,{height},5,3] x) => (float y)"
    check_rewrite(lab, use_nearest_resize, signature, before, resized(), **constants)


def test_a_tensor_of_unknown_rank_is_passed_over(lab):
    signature = "(float[2,4,5,3] x) => (float y)"
    before = repeat("e", "r", "two", "rows2", "tall") + "y = Exp(r)"
    model = build(lab, f"{signature} {{ e = Exp(x)\n {before} }}", CONSTANTS)
    model.graph[0].outputs[0].shape = None
    assert_same(use_nearest_resize(model), model)
