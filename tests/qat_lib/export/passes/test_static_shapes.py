"""Reshape targets and Resize scales that become exact constants."""

import numpy as np
import onnx_ir as ir
import pytest
from graph_text import assert_same, build, check_rewrite, describe, floats, ints

from qat_lib.export.passes import fix_reshape_targets, fix_resize_scales
from qat_lib.export.passes.static_shapes import infer_shapes

pytestmark = pytest.mark.timeout(10)  # seconds: a scale grows step by step

SHAPE = "s = Shape(x)\n n = Gather(s, {})\n t = Concat<axis=0>(n, rest)\n y = Reshape(x, t)"
CONSTANTS = {"first": ints(0), "rest": ints(20), "zero": ints(0)}


def test_a_computed_target_of_one_open_axis_becomes_constant(lab):
    signature = "(float[N,4,5] x) => (float[M,20] y)"
    after = "y = Reshape(x, t)"
    check = {"first": ints(0), "rest": ints(20)}
    model = build(lab, f"{signature} {{ {SHAPE.format('first')} }}", check)
    wanted = build(lab, f"{signature} {{ {after} }}", {"t": ints(-1, 20)})
    assert_same(lab.check(model, fix_reshape_targets, {"x": floats(2, 4, 5)}), wanted)


def test_a_computed_target_without_open_axes_becomes_constant(lab):
    before = SHAPE.format("first")
    signature = "(float[2,4,5] x) => (float[2,20] y)"
    check_rewrite(
        lab, fix_reshape_targets, signature, before, "y = Reshape(x, t)", **CONSTANTS, t=ints(2, 20)
    )


STAY = {
    "two open axes": ("(float[N,4,5] x, int64[2] k) => (float[A,B] y)", "y = Reshape(x, k)"),
    "no element": ("(float[N,0,5] x, int64[2] k) => (float[A,0] y)", "y = Reshape(x, k)"),
    "a constant": ("(float[N,4,5] x) => (float[A,20] y)", "y = Reshape(x, whole)"),
    "another operator": ("(float[N,1,5] x, int64[3] k) => (float[A,4,5] y)", "y = Expand(x, k)"),
}


@pytest.mark.parametrize("case", STAY)
def test_other_targets_stay(lab, case):
    signature, text = STAY[case]
    model = build(lab, f"{signature} {{ {text} }}", {"whole": ints(0, 20)})
    assert describe(fix_reshape_targets(model)) == describe(model)


def test_a_target_of_unknown_rank_stays(lab):
    text = "(float[N,4,5] x, int64[K] k) => (float[A] y) { a = Reshape(x, k)\n y = Flatten(a) }"
    model = build(lab, text, {})
    lab.node(model, "Reshape").outputs[0].shape = None
    assert lab.node(fix_reshape_targets(model), "Reshape").inputs[1].name == "k"


def test_the_next_target_is_met_after_one_that_stays(lab):
    for first in ("y = Exp(x)", "y = Reshape(x, k)", "y = Reshape(x, whole)"):
        signature = "(float[N,4,5] x, int64[2] k, int64[2] h) => (float[A,B] y, float[C,20] z)"
        if "Exp" in first:
            signature = signature.replace("A,B", "A,4,5")
        model = build(lab, f"{signature} {{ {first}\n z = Reshape(x, h) }}", {"whole": ints(0, 20)})
        node = lab.node(fix_reshape_targets(model), "Reshape", -1)
        assert node.inputs[1].const_value.numpy().tolist() == [-1, 20]


def test_shapes_that_are_known_are_kept(lab):
    """The conversion knows more than ONNX can infer."""
    model = build(
        lab,
        "(float[N,4] x, int64[2] k) => (float[2,6] z) { y = Reshape(x, k)\n a = Exp(y)\n z = Exp(a) }",
        {},
    )
    reshape, middle, last = model.graph
    reshape.outputs[0].shape, middle.outputs[0].shape = ir.Shape([2, 6]), None
    infer_shapes(model)
    assert [list(node.outputs[0].shape) for node in (reshape, middle, last)] == [[2, 6]] * 3


def test_sizes_that_are_known_win_over_those_inferred(lab):
    model = build(lab, "(float[N,6] x) => (float[A,B] z) { y = Exp(x)\n z = Exp(y) }", {})
    model.graph[0].outputs[0].shape = ir.Shape([2, 6])
    infer_shapes(model)
    assert list(model.graph[0].outputs[0].shape) == [2, 6]


def test_shapes_that_are_known_in_part_are_inferred(lab):
    model = build(lab, "(float[2,6] x) => (float[A,B] z) { y = Exp(x)\n z = Exp(y) }", {})
    model.graph[0].outputs[0].shape = ir.Shape([None, 6])
    infer_shapes(model)
    assert list(model.graph[0].outputs[0].shape) == [2, 6]


@pytest.mark.parametrize("sum_of", ["Add(a, b)", "Add(a, i)"])
def test_what_cannot_be_inferred_is_left(lab, sum_of):
    """Sizes or types that do not fit.

    The later check of the whole model tells more.
    """
    signature = "(float[2,3] x, float[4,5] u, int64[2,3] n) => (float z)"
    model = build(lab, f"{signature} {{ a = Exp(x)\n b = Exp(u)\n i = Neg(n)\n z = {sum_of} }}", {})
    model.graph[0].outputs[0].shape = None
    infer_shapes(model)
    assert list(model.graph[0].outputs[0].shape) == [2, 3]


RESIZE = 'Resize<mode = "linear", coordinate_transformation_mode = "half_pixel">(x, , scales)'


def resize(lab, scales, shape="1,2,12,7"):
    text = f"(float[{shape}] x) => (float[A,B,C,D] y) {{ y = {RESIZE} }}"
    model = build(lab, text, {"scales": np.float32(scales)})
    return model, fix_resize_scales(model)


def test_short_scale_grows_by_least_step(lab):
    short, exact = np.float32(5 / 12), np.float32(3 / 7)
    assert np.floor(12 * float(short)) == 4 or np.floor(7 * float(exact)) == 2
    model, lowered = resize(lab, [1, 1, short, exact])
    scales = lowered.graph[0].inputs[2].const_value.numpy()
    for size, scale, before, target in ((12, scales[2], short, 5), (7, scales[3], exact, 3)):
        assert np.floor(size * float(scale)) == target
        assert (
            scale == before
            or np.floor(size * float(np.nextafter(scale, np.float32(0)))) == target - 1
        )
    assert scales[:2].tolist() == [1, 1]
    assert list(lowered.graph[0].outputs[0].shape) == [1, 2, 5, 3]
    assert lowered.graph[0].inputs[2].name == "node_0/scales"
    assert (
        model.graph[0].inputs[2].const_value.numpy().tolist()
        == np.float32([1, 1, short, exact]).tolist()
    )


@pytest.mark.parametrize("scales", [[1, 1, 2, 2], [1, 1, 0.5, 1.0], [1, 1, 1.5, 2.0]])
def test_scales_that_reach_the_size_stay(lab, scales):
    model, lowered = resize(lab, scales)
    assert_same(lowered, model)


def test_the_scale_of_an_open_size_stays(lab):
    short = np.float32(5 / 12)
    _, lowered = resize(lab, [1, 1, short, short], "N,2,H,12")
    scales = lowered.graph[0].inputs[2].const_value.numpy()
    assert scales[2] == short
    assert scales[3] == np.nextafter(short, np.float32(1))
    assert [d if isinstance(d, int) else None for d in lowered.graph[0].outputs[0].shape] == [
        None,
        2,
        None,
        5,
    ]


def test_other_operators_and_sizes_stay(lab):
    text = "(float[1,2,12,7] x, float[4] k) => (float[A,B,C,D] y, float[E,F,G,H] z, float[I,J,K,L] w) {{ {} }}"
    calls = [
        'y = Resize<mode = "nearest">(x, , k)\n z = Resize<mode = "nearest">(x, , , sizes)\n',
        'w = Resize<mode = "nearest">(x, , short)',
    ]
    short = np.float32([1, 1, 5 / 12, 1])
    model = build(lab, text.format("".join(calls)), {"sizes": ints(1, 2, 5, 7), "short": short})
    lowered = fix_resize_scales(model)
    first, second, third = (node for node in lowered.graph if node.op_type == "Resize")
    assert first.inputs[2].name == "k"
    assert second.inputs[2] is None
    assert third.inputs[2].const_value.numpy()[2] == np.nextafter(short[2], np.float32(1))


def test_a_resize_of_unknown_rank_stays(lab):
    text = f"(float[1,2,12,7] x) => (float[A,B,C,D] y) {{ e = Exp(x)\n y = {RESIZE.replace('(x', '(e')} }}"
    model = build(lab, text, {"scales": np.float32([1, 1, 5 / 12, 1])})
    model.graph[0].outputs[0].shape = None
    assert_same(fix_resize_scales(model), model)


def test_an_empty_list_of_scales_stays(lab):
    """Opset 11 wants scales beside sizes, and takes empty ones."""
    text = '(float[1,2,12,7] x) => (float[A,B,C,D] y) { y = Resize<mode = "nearest">(x, , none, sizes) }'
    model = build(lab, text, {"none": np.zeros(0, np.float32), "sizes": ints(1, 2, 5, 7)})
    assert_same(fix_resize_scales(model), model)
