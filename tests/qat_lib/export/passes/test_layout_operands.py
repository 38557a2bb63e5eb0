"""Operators of several tensors, of which some come through a Transpose."""

import pytest
from graph_text import build, check_rewrite, describe, floats

from qat_lib.export.passes import remove_transposes

# x comes channels first. A pool stands in front of each Transpose, so that none of them is lifted
# to the input.
FRONT = "r = MaxPool<kernel_shape = [1,1]>(x)\n t = Transpose<perm = [0,2,3,1]>(r)\n"
PLAIN = "r = MaxPool<kernel_shape = [1,1]>(x)\n"
BEHIND = "y = Transpose<perm = [0,2,3,1]>(a)"

# Two operands: a second tensor of its own layout.
PAIR = "(float[2,3,4,5] x, float[{}] g) => (float y)"
GATED = {
    "a gate of one pixel": ("2,1,1,3", True),
    "a gate of one channel": ("2,4,1,1", True),
    "a gate of open width": ("2,1,W,1", True),
    "another image": ("2,4,5,3", True),
    "a scalar": ("", True),
    "a vector": ("3", False),
    "three axes": ("4,5,3", False),
    "one element": ("1", False),
}


@pytest.mark.parametrize("case", GATED)
def test_a_second_operand_is_turned_once_the_transpose_passes(lab, case):
    shape, moves = GATED[case]
    gate = "g" if shape == "" else "u"
    turn = "" if shape == "" else "u = Transpose<perm = [0,3,1,2]>(g)\n"
    before, after = FRONT + "y = Add(t, g)", PLAIN + turn + f"a = Add(r, {gate})\n" + BEHIND
    signature = PAIR.format(shape).replace("[]", "") if shape == "" else PAIR.format(shape)
    model = build(lab, f"{signature} {{ {before} }}", {})
    if shape == "":
        model.graph.inputs[1].shape = type(model.graph.inputs[0].shape)([])
    lowered = remove_transposes(model)
    wanted = build(lab, f"{signature} {{ {after if moves else before} }}", {})
    assert [line.split(" = ", 1)[1] for line in describe(lowered)] == [
        line.split(" = ", 1)[1] for line in describe(wanted)
    ]


def test_a_transpose_does_not_pass_where_two_would_come(lab):
    signature = "(float[2,3,4,5] x, float[2,4,5,3] g, float[2,4,5,3] h) => (float y)"
    check_rewrite(lab, remove_transposes, signature, FRONT + "y = Sum(g, t, h)")
    thin = signature.replace("4,5,3] h", "1,1,3] h")
    after = "u = Transpose<perm = [0,3,1,2]>(g)\n v = Transpose<perm = [0,3,1,2]>(h)\n a = Sum(u, r, v)\n"
    check_rewrite(lab, remove_transposes, thin, FRONT + "y = Sum(g, t, h)", PLAIN + after + BEHIND)


BOTH = FRONT + "u = Transpose<perm = [{}]>(r)\n v = Exp(r)\n w = Transpose<perm = [0,2,3,1]>(v)\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("Sum(t, u, w)", "Sum(r, n, v)"),
        ("Sum(u, t, w)", "Sum(n, r, v)"),
        ("Sum(t, w, u)", "Sum(r, v, n)"),
    ],
)
def test_the_commonest_permutation_wins(lab, before, after):
    # u = x with the channels in the middle: brought to the layout of the two others.
    signature = "(float[2,4,4,4] x) => (float y)"
    check_rewrite(
        lab,
        remove_transposes,
        signature,
        BOTH.format("0,2,1,3") + f"y = {before}",
        PLAIN + "v = Exp(r)\n n = Transpose<perm = [0,3,2,1]>(r)\n" + f"a = {after}\n" + BEHIND,
    )


CONCATS = {
    "two of two": ("Concat<axis = 3>(t, w)", "Concat<axis = 1>(r, v)"),
    "one of two": ("Concat<axis = 1>(g, t)", "Concat<axis = 2>(n, r)"),
    "two of three": ("Concat<axis = 3>(t, g, w)", "Concat<axis = 1>(r, n, v)"),
    "one of three": ("Concat<axis = 3>(g, g, t)", None),
    "one of three, with a constant": ("Concat<axis = 3>(wide, t, wide)", None),
    "two of four": ("Concat<axis = -3>(t, wide, w, wide)", "Concat<axis = 2>(r, first, v, first)"),
}


@pytest.mark.parametrize("case", CONCATS)
def test_concat_follows_half_transposed_inputs(lab, case):
    before, after = CONCATS[case]
    signature = "(float[2,3,4,5] x, float[2,4,5,3] g) => (float y)"
    front = FRONT + "v = Exp(r)\n w = Transpose<perm = [0,2,3,1]>(v)\n"
    behind = f"v = Exp(r)\n n = Transpose<perm = [0,3,1,2]>(g)\n a = {after}\n {BEHIND}"
    check_rewrite(
        lab,
        remove_transposes,
        signature,
        front + f"y = {before}",
        None if after is None else PLAIN + behind,
        wide=floats(2, 4, 5, 3),
        first=floats(2, 4, 5, 3).transpose(0, 3, 1, 2),
    )


def test_a_concat_follows_the_first_permutation(lab):
    before = FRONT + "u = Transpose<perm = [0,2,1,3]>(r)\n y = Concat<axis = 1>(t, u)"
    after = PLAIN + "n = Transpose<perm = [0,3,2,1]>(r)\n a = Concat<axis = 2>(r, n)\n" + BEHIND
    check_rewrite(lab, remove_transposes, "(float[2,4,4,4] x) => (float y)", before, after)


def test_a_concat_of_unknown_rank_stays(lab):
    model = build(
        lab, f"{PAIR.format('2,4,5,3')} {{ {FRONT} h = Exp(g)\n y = Concat<axis = 3>(t, h) }}", {}
    )
    lab.node(model, "Exp").outputs[0].shape = None
    assert describe(remove_transposes(model)) == describe(model)
