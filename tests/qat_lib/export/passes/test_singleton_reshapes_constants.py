"""Constants behind a 1-D convolution's Squeeze, moved in front of it.

They are spread to its rank.
"""

import pytest
from graph_text import assert_same, build, check_rewrite, floats, ints

from qat_lib.export.passes import eliminate_singleton_reshapes

pytestmark = pytest.mark.timeout(10)  # seconds: the pass goes on until nothing changes

SEQUENCE = "(float[2,3,1,8] x) => (float y)"
CONV = "c = Conv<kernel_shape = [1,1]>(x, k)\n"
BIAS = {
    "k": floats(4, 3, 1, 1),
    "axis": ints(2),
    "behind": ints(-2),
    "both": ints(0, 2),
    "bias": floats(4, 1),
    "spread": floats(1, 4, 1, 1),
    "scale": floats(8),
    "spread_scale": floats(1, 1, 1, 8),
    "row": floats(2, 4, 8),
    "spread_row": floats(2, 4, 1, 8),
}
SPREAD = {
    "a bias": ("Add(s, bias)", "Add(c, spread)"),
    "a bias in front": ("Sub(bias, s)", "Sub(spread, c)"),
    "a constant of one axis": ("Div(s, scale)", "Div(c, spread_scale)"),
    "a constant of all axes": ("Mul(s, row)", "Mul(c, spread_row)"),
}


@pytest.mark.parametrize("axis", ["axis", "behind"])
@pytest.mark.parametrize("case", SPREAD)
def test_constant_behind_squeeze_is_spread(lab, case, axis):
    before, after = SPREAD[case]
    check_rewrite(
        lab,
        eliminate_singleton_reshapes,
        SEQUENCE,
        CONV + f"s = Squeeze(c, {axis})\n a = {before}\n y = Exp(a)",
        CONV + f"a = {after}\n s = Squeeze(a, {axis})\n y = Exp(s)",
        tolerance=1e-5,
        **BIAS,
    )


def test_constants_behind_a_convolution_are_spread_one_after_another(lab):
    check_rewrite(
        lab,
        eliminate_singleton_reshapes,
        SEQUENCE,
        CONV + "s = Squeeze(c, axis)\n a = Mul(bias, s)\n b = Add(a, row)\n y = Exp(b)",
        CONV + "a = Mul(spread, c)\n b = Add(a, spread_row)\n s = Squeeze(b, axis)\n y = Exp(s)",
        tolerance=1e-5,
        **BIAS,
    )


NOT_SPREAD = {
    "no convolution": "e = Exp(x)\n s = Squeeze(e, axis)\n a = Add(s, one_row)\n y = Exp(a)",
    "two tensors in front": "c = Add(x, x)\n s = Squeeze(c, axis)\n a = Add(s, one_row)\n y = Exp(a)",
    "constants alone": "c = Add(row4, row4)\n s = Squeeze(c, axis)\n a = Add(s, row3)\n y = Add(a, x)",
    "no squeeze": CONV + "s = Reshape(c, target)\n a = Add(s, bias)\n y = Exp(a)",
    "a squeeze of all": CONV + "s = Squeeze(c)\n a = Add(s, bias)\n y = Exp(a)",
    "another operator": CONV + "s = Squeeze(c, axis)\n a = Max(s, bias)\n y = Exp(a)",
    "a computed operand": CONV
    + "s = Squeeze(c, axis)\n e = Exp(bias)\n a = Add(s, e)\n y = Exp(a)",
    "a constant of more axes": CONV + "s = Squeeze(c, axis)\n a = Add(s, cube)\n y = Exp(a)",
    "the sum is the output": CONV + "s = Squeeze(c, axis)\n y = Add(s, bias)",
}


@pytest.mark.parametrize("case", NOT_SPREAD)
def test_other_constants_stay_behind_the_squeeze(lab, case):
    constants = {
        **BIAS,
        "one_row": floats(3, 1),
        "target": ints(2, 4, 8),
        "cube": floats(1, 2, 4, 8),
    }
    constants |= {"row4": floats(1, 3, 1, 8), "row3": floats(3, 1)}
    check_rewrite(lab, eliminate_singleton_reshapes, SEQUENCE, NOT_SPREAD[case], **constants)


@pytest.mark.parametrize("wide", [(4, 1), (4, 8), (2, 4, 1)])
def test_widening_constant_stays_behind_squeeze(lab, wide):
    signature = "(float[1,3,1,1] x) => (float y)"
    text = "c = Conv<kernel_shape = [1,1]>(x, k)\n s = Squeeze(c, axis)\n a = Add(s, bias)\n y = Exp(a)"
    constants = {"k": floats(1, 3, 1, 1), "axis": ints(2), "bias": floats(*wide)}
    check_rewrite(lab, eliminate_singleton_reshapes, signature, text, **constants)


def test_a_squeeze_of_two_axes_is_not_passed(lab):
    text = CONV + "s = Squeeze(c, both)\n a = Add(s, bias)\n y = Exp(a)"
    check_rewrite(lab, eliminate_singleton_reshapes, SEQUENCE.replace("2,3", "1,3"), text, **BIAS)


def test_a_squeeze_of_unknown_shape_is_not_passed(lab):
    model = build(
        lab, f"{SEQUENCE} {{ {CONV} s = Squeeze(c, axis)\n a = Add(s, bias)\n y = Exp(a) }}", BIAS
    )
    lab.node(model, "Squeeze").outputs[0].shape = lab.node(model, "Add").outputs[0].shape = None
    assert_same(eliminate_singleton_reshapes(model), model)
