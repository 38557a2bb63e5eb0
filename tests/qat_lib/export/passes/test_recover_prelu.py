"""Pieces of a PReLU become one node; variants stay."""

import numpy as np
import pytest

from qat_lib.export import passes

SHAPE = (2, 4, 5, 3)
SOURCE = "Add(Relu(x), Mul(m, Relu(Neg(x))))"


def lower(lab, rng, text, slope=(1, 1, 3), shape=SHAPE):
    inputs = {"x": rng.normal(size=shape).astype(np.float32)}
    more = {"one": np.float32([1]), "m": rng.normal(size=slope).astype(np.float32)}
    model = lab.formula(text, inputs, **more)
    return model, lab.check(model, passes.recover_prelu, inputs)


@pytest.mark.parametrize(
    "text",
    [
        SOURCE,
        "Add(Relu(x), Mul(Relu(Neg(x)), m))",
        "Add(Mul(m, Relu(Neg(x))), Relu(x))",
        "Add(Mul(Relu(Neg(x)), m), Relu(x))",
    ],
)
def test_recover_prelu_takes_operands_in_any_order(lab, rng, text):
    model, lowered = lower(lab, rng, text)
    name = f"{model.graph[-1].name}/slope"
    assert lab.results(lowered) == [f"PRelu(x, {name})"]
    np.testing.assert_array_equal(lab.constants(lowered)[name], -lab.constants(model)["m"])
    assert list(lowered.graph.outputs[0].shape) == list(SHAPE)


@pytest.mark.parametrize(
    "text",
    [
        "Add(Relu(x), Mul(m, Abs(Neg(x))))",
        "Add(Relu(x), Mul(m, Relu(Abs(x))))",
        "Add(Relu(x), Mul(m, Relu(x)))",
        "Add(Relu(x), Mul(m, Neg(x)))",
        "Add(Abs(x), Mul(m, Relu(Neg(x))))",
        "Add(Relu(Exp(x)), Mul(m, Relu(Neg(x))))",
        "Add(Relu(x), Mul(m, Relu(Neg(Exp(x)))))",
        "Add(Relu(x), Add(m, Relu(Neg(x))))",
        "Add(Relu(x), Mul(x, Relu(Neg(x))))",
        "Add(Relu(x), Mul(Relu(Neg(x)), Relu(Neg(x))))",
        "Add(Relu(x), Mul(m, m))",
        "Add(Relu(x), Relu(x))",
        "Add(Relu(x), m)",
        "Add(x, Mul(m, Relu(Neg(x))))",
        "Add(Mul(m, x), Mul(m, Relu(Neg(x))))",
        "Sub(Relu(x), Mul(m, Relu(Neg(x))))",
        "Mul(Relu(x), Mul(m, Relu(Neg(x))))",
    ],
)
def test_recover_prelu_leaves(lab, rng, text):
    """And goes on behind it."""
    _, lowered = lower(lab, rng, f"{text}; e = Exp(x); {SOURCE.replace('x', 'e')}")
    left, after = lab.results(lowered)
    assert left == text
    assert after.startswith("PRelu(Exp(x), ")


@pytest.mark.parametrize(
    ("slope", "shape", "fits"),
    [
        ((), (2, 3), True),
        ((1,), (2, 3), True),
        ((3,), (2, 3), True),
        ((1, 3), (2, 3), True),
        ((2, 1), (2, 3), True),
        ((2, 3), (2, 3), True),
        ((1, 1, 3), (2, 3), False),  # of a higher rank
        ((4, 1, 3), (1, 1, 3), False),  # larger along an axis
        ((1, 1, 3), (2, 4, 1), False),
        ((4,), (1,), False),
    ],
)
def test_recover_prelu_needs_broadcastable_slope(lab, rng, slope, shape, fits):
    _, lowered = lower(lab, rng, SOURCE, slope, shape)
    assert lab.ops(lowered)["PRelu"] == fits


def test_recover_prelu_needs_the_shape_of_the_data(lab, rng):
    model, _ = lower(lab, rng, SOURCE)
    model.graph.inputs[0].shape = None
    assert lab.ops(passes.recover_prelu(model))["PRelu"] == 0


def test_recover_prelu_takes_a_slope_behind_an_open_axis(lab, rng):
    """A slope has size 1 along an unknown dimension."""
    for slope, fits in (((1, 4, 5, 3), True), ((2, 4, 5, 3), False)):
        model = lab.formula(SOURCE, {"x": np.ones(SHAPE, np.float32)}, m=np.ones(slope, np.float32))
        value = model.graph.inputs[0]
        value.shape = type(value.shape)(["batch", 4, 5, 3])
        assert lab.ops(passes.recover_prelu(model))["PRelu"] == fits
