"""Reshapes without data movement: merged, sunk, lifted, removed or kept."""

import numpy as np
import pytest
from graph_text import assert_same, build, check_rewrite, floats, ints

from qat_lib.export.graph import LAYER
from qat_lib.export.passes import eliminate_singleton_reshapes
from qat_lib.export.passes.singleton_reshapes import is_reshape

pytestmark = pytest.mark.timeout(10)  # seconds: the pass goes on until nothing changes

CONSTANTS = {
    "s": np.float32(0.1),
    "s1": np.float32([0.1]),
    "s11": np.float32([[0.1]]),
    "s3": np.float32([0.1, 0.2, 0.3]),
    "z": np.int8(0),
    "z1": np.int8([0]),
    "z3": np.zeros(3, np.int8),
    "six": np.float32(6),
    "flat": ints(-1, 3),
    "image": ints(-1, 1, 1, 3),
    "first": ints(-1, 3, 1, 1),
    "ends": ints(1, 2),
    "three": floats(3),
}
OPEN = "(float[N,3,1,1] x) => (float y)"


@pytest.mark.parametrize(
    ("text", "thin"),
    [
        ("Reshape(x, flat)", True),
        ("Flatten(x)", True),
        ("Squeeze(x)", True),
        ("Unsqueeze(x, flat)", True),
        ("Transpose<perm = [0,2,1,3]>(x)", True),
        ("Transpose<perm = [2,0,3,1]>(x)", False),
        ("Transpose<perm = [1,0,2,3]>(x)", False),
        ("Transpose<perm = [2,0,1,3]>(x)", True),
        ("Transpose(x)", False),
        ("Exp(x)", False),
    ],
)
def test_is_reshape(lab, text, thin):
    model = build(
        lab,
        f"(float[N,3,1,5] x) => (float[A,B] y) {{ y = {text} }}",
        {**CONSTANTS, "flat": ints(0, 4)},
    )
    assert is_reshape(model.graph[0]) is thin


def test_is_reshape_of_nothing_and_of_an_unknown_shape(lab):
    model = build(lab, "(float[2,3] x) => (float y) { y = Transpose<perm = [0,1]>(x) }", {})
    assert is_reshape(model.graph[0])
    model.graph.inputs[0].shape = None
    assert not is_reshape(model.graph[0])
    assert not is_reshape(None)


JOINED = {
    "back to the shape": ("a = Flatten(x)\n b = Reshape(a, first)\n y = Exp(b)", "y = Exp(x)"),
    "to another shape": (
        "a = Flatten(x)\n b = Reshape(a, image)\n y = Exp(b)",
        "b = Reshape(x, image)\n y = Exp(b)",
    ),
    "three": (
        "a = Flatten(x)\n b = Reshape(a, image)\n c = Flatten(b)\n y = Exp(c)",
        "c = Reshape(x, flat)\n y = Exp(c)",
    ),
    "a squeeze and a transpose": (
        "a = Transpose<perm=[0,2,3,1]>(x)\n b = Squeeze(a, ends)\n y = Exp(b)",
        "b = Reshape(x, flat)\n y = Exp(b)",
    ),
    "two in front of an operator": (
        "a = Flatten(x)\n b = Reshape(a, image)\n c = Relu(b)\n d = Reshape(c, first)\n y = Exp(d)",
        "c = Relu(x)\n y = Exp(c)",
    ),
    "the last is the output": ("a = Flatten(x)\n y = Reshape(a, first)", None),
    "one alone": ("a = Flatten(x)\n y = Exp(a)", None),
    "an operator between": ("a = Flatten(x)\n b = Exp(a)\n y = Reshape(b, first)", None),
}


@pytest.mark.parametrize("case", JOINED)
def test_reshapes_in_a_row_join(lab, case):
    check_rewrite(lab, eliminate_singleton_reshapes, OPEN, *JOINED[case], **CONSTANTS)


def test_reshapes_of_two_open_axes(lab):
    """A reshape that restores the shape may go.

    Another shape of two open axes can't be written as a constant.
    """
    signature = "(float[N,M,1] x) => (float y, float z)"
    text = "a = Squeeze(x, last)\n b = Unsqueeze(a, last)\n y = Exp(b)\n c = Unsqueeze(a, front)\n z = Exp(c)"
    after = "y = Exp(x)\n a = Squeeze(x, last)\n c = Unsqueeze(a, front)\n z = Exp(c)"
    axes = {"last": ints(2), "front": ints(0)}
    check_rewrite(lab, eliminate_singleton_reshapes, signature, text, after, **axes)


@pytest.mark.parametrize(
    ("added", "dropped", "gone"), [(-3, 1, True), (1, -3, True), (1, 2, False)]
)
def test_unsqueeze_of_open_sizes_and_its_squeeze(lab, added, dropped, gone):
    signature = "(float[N,M,K] x) => (float y)"
    text = "a = Unsqueeze(x, added)\n b = Squeeze(a, dropped)\n y = Exp(b)"
    axes = {"added": ints(added), "dropped": ints(dropped)}
    after = "y = Exp(x)" if gone else None
    check_rewrite(lab, eliminate_singleton_reshapes, signature, text, after, **axes)


def test_reshapes_of_one_open_axis(lab):
    signature = "(float[N,3,1] x) => (float y, float z)"
    before = "a = Squeeze(x, last)\n b = Unsqueeze(a, last)\n y = Exp(b)\n c = Unsqueeze(a, front)\n z = Exp(c)"
    after = "y = Exp(x)\n c = Reshape(x, target)\n z = Exp(c)"
    check_rewrite(
        lab,
        eliminate_singleton_reshapes,
        signature,
        before,
        after,
        last=ints(2),
        front=ints(0),
        target=ints(1, -1, 3),
    )


def test_reshapes_of_no_element_stay(lab):
    """A 0 in a Reshape's target copies an axis."""
    signature = "(float[4,0,1] x) => (float y)"
    check_rewrite(
        lab,
        eliminate_singleton_reshapes,
        signature,
        "a = Squeeze(x, t)\n b = Unsqueeze(a, o)\n y = Exp(b)",
        t=ints(2),
        o=ints(0),
    )
    before = "a = Squeeze(x, t)\n b = Unsqueeze(a, t)\n y = Exp(b)"
    check_rewrite(lab, eliminate_singleton_reshapes, signature, before, "y = Exp(x)", t=ints(2))


def test_reshape_read_twice_stays(lab):
    check_rewrite(
        lab,
        eliminate_singleton_reshapes,
        "(float[N,3,1,1] x) => (float y, float z)",
        "a = Flatten(x)\n z = Exp(a)\n b = Reshape(a, image)\n y = Exp(b)",
        "a = Flatten(x)\n z = Exp(a)\n b = Reshape(x, image)\n y = Exp(b)",
        **CONSTANTS,
    )
    check_rewrite(
        lab,
        eliminate_singleton_reshapes,
        "(float[N,3,1,1] x) => (float y, float z)",
        "z = Flatten(x)\n b = Reshape(z, image)\n y = Exp(b)",
        "z = Flatten(x)\n b = Reshape(x, image)\n y = Exp(b)",
        **CONSTANTS,
    )


def test_reshapes_of_unknown_shape(lab):
    text = f"{OPEN} {{ e = Exp(x)\n a = Flatten(e)\n b = Reshape(a, image)\n y = Exp(b) }}"
    for name, joined in (
        ("Exp", "e = Exp(x)\n b = Reshape(e, image)\n y = Exp(b)"),
        ("Reshape", None),
    ):
        model = build(lab, text, CONSTANTS)
        lab.node(model, name).outputs[0].shape = None
        wanted = model if joined is None else build(lab, f"{OPEN} {{ {joined} }}", CONSTANTS)
        lab.node(wanted, name).outputs[0].shape = (
            None if name == "Exp" or joined is None else wanted.graph[1].outputs[0].shape
        )
        assert_same(eliminate_singleton_reshapes(model), wanted)


# What a reshape passes on its way to the next one. In front of it is an operator that it can't
# pass.
PASSED = {
    "an activation": "Relu({})",
    "bounds": "Clip({}, s, six)",
    "a bound": "Clip({}, , six)",
    "a scalar": "Add({}, s)",
    "a vector of one": "Mul({}, s1)",
    "a division": "Div({}, s)",
    "a difference": "Sub({}, s)",
}
STOPPED = {
    "a matrix of one": "Mul({}, s11)",
    "a vector": "Mul({}, three)",
    "a constant in front": "Sub(s, {})",
    "an operator that is not pointwise": "Softmax({})",
    "itself": "Mul({0}, {0})",
    "a computed scalar": "Mul({}, k)",
}


@pytest.mark.parametrize("case", PASSED)
def test_reshape_sinks_to_next_reshape(lab, case):
    call = PASSED[case]
    before = (
        f"e = Exp(x)\n a = Flatten(e)\n b = {call.format('a')}\n c = Reshape(b, first)\n y = Exp(c)"
    )
    check_rewrite(
        lab,
        eliminate_singleton_reshapes,
        OPEN,
        before,
        f"e = Exp(x)\n b = {call.format('e')}\n y = Exp(b)",
        **CONSTANTS,
    )
    before = before.replace("y = Exp(c)", "y = Relu(c)").replace("first", "image")
    after = f"e = Exp(x)\n b = {call.format('e')}\n c = Reshape(b, image)\n y = Relu(c)"
    check_rewrite(lab, eliminate_singleton_reshapes, OPEN, before, after, **CONSTANTS)


@pytest.mark.parametrize("case", STOPPED)
def test_reshape_stops_at_operators_that_depend_on_shape(lab, case):
    text = f"k = ReduceMax<keepdims = 0>(x)\n e = Exp(x)\n a = Flatten(e)\n b = {STOPPED[case].format('a')}\n"
    text += "c = Reshape(b, first)\n y = Exp(c)"
    check_rewrite(lab, eliminate_singleton_reshapes, OPEN, text, **CONSTANTS)
    text = (
        text.replace("b =", "d = Relu(a)\n b =")
        .replace("(a", "(d")
        .replace(", a)", ", d)")
        .replace("Relu(d)", "Relu(a)")
    )
    check_rewrite(lab, eliminate_singleton_reshapes, OPEN, text, **CONSTANTS)


QDQ = "q = QuantizeLinear<axis=0>({0}, {1})\n d = DequantizeLinear<axis=0>(q, {1})\n"


@pytest.mark.parametrize("scale", ["s, z", "s1, z1"])
def test_a_reshape_sinks_below_a_quantizer(lab, scale):
    before = (
        "e = Exp(x)\n a = Flatten(e)\n"
        + QDQ.format("a", scale)
        + "b = Relu(d)\n c = Reshape(b, first)\n y = Exp(c)"
    )
    after = "e = Exp(x)\n" + QDQ.format("e", scale) + "b = Relu(d)\n y = Exp(b)"
    check_rewrite(lab, eliminate_singleton_reshapes, OPEN, before, after, **CONSTANTS)


def test_a_reshape_does_not_sink_below_scales_of_channels(lab):
    text = "e = Exp(x)\n a = Flatten(e)\n" + QDQ.format("a", "s3, z3").replace("axis=0", "axis=1")
    check_rewrite(
        lab,
        eliminate_singleton_reshapes,
        OPEN,
        text + "c = Reshape(d, first)\n y = Exp(c)",
        **CONSTANTS,
    )


SINKS = {
    "no reshape behind": "a = Flatten(x)\n b = Relu(a)\n y = Exp(b)",
    "no reshape behind two": "a = Flatten(x)\n b = Relu(a)\n c = Clip(b, s, six)\n y = Exp(c)",
    "the operator is the output": "a = Flatten(x)\n y = Relu(a)",
    "a transpose that moves data behind": "a = Flatten(x)\n b = Relu(a)\n y = Transpose<perm=[1,0]>(b)",
}
TWO = "(float[N,3,1,1] x) => (float y, float z)"


@pytest.mark.parametrize("case", SINKS)
def test_a_reshape_sinks_to_another_reshape_only(lab, case):
    check_rewrite(lab, eliminate_singleton_reshapes, OPEN, SINKS[case], **CONSTANTS)


@pytest.mark.parametrize(
    "text",
    [
        "a = Flatten(x)\n z = Exp(a)\n b = Relu(a)\n c = Reshape(b, first)\n y = Exp(c)",
        "z = Flatten(x)\n b = Relu(z)\n c = Reshape(b, first)\n y = Exp(c)",
        "a = Flatten(x)\n b = Relu(a)\n z = Exp(b)\n c = Reshape(b, first)\n y = Exp(c)",
        "a = Flatten(x)\n z = Relu(a)\n c = Reshape(z, first)\n y = Exp(c)",
        "a = Flatten(x)\n b = Relu(a)\n z = Clip(b, s, six)\n c = Reshape(z, first)\n y = Exp(c)",
    ],
)
def test_a_reshape_does_not_sink_where_something_else_reads(lab, text):
    check_rewrite(lab, eliminate_singleton_reshapes, TWO, text, **CONSTANTS)


def test_reshape_sinks_to_output_reshape(lab):
    before = "e = Exp(x)\n a = Flatten(e)\n b = Relu(a)\n y = Reshape(b, image)"
    after = "e = Exp(x)\n b = Relu(e)\n a = Flatten(b)\n y = Reshape(a, image)"
    lowered = check_rewrite(lab, eliminate_singleton_reshapes, OPEN, before, after, **CONSTANTS)
    assert lab.node(lowered, "Flatten").meta[LAYER] == "layer_1"
