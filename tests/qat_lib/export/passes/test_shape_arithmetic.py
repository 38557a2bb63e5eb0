"""Shapes that a graph computes, read from its operators."""

import numpy as np
import pytest

from qat_lib.export.passes.shape_arithmetic import Extent, extents

NUMBERS = {
    "zero": np.array([0]),
    "one": np.array([1]),
    "two": np.array([2]),
    "three": np.array([3]),
    "last": np.array([-1]),
    "end": np.array([2**63 - 1]),
    "minus4": np.array([-4]),
    "minus5": np.array([-5]),
    "four": np.array([4]),
    "five": np.array(5),
    "pair": np.array([7, 9]),
    "several": np.array([3, 0]),
    "quad": np.array([2, 3, 4, 5]),
    "small": np.array([6], np.int32),
    "byte": np.array([6], np.uint8),
    "float": np.array([6.0], np.float32),
    "matrix": np.array([[6, 7]]),
}
B, H, W, C = (Extent(1, axis) for axis in range(4))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Shape(x)", [B, H, W, C]),
        ("Shape<start = 0>(x)", None),
        ("Shape<end = 4>(x)", None),
        ("Shape(Relu(x))", None),
        ("x", None),
        ("Identity(one)", [Extent(1)]),
        ("Identity(quad)", [Extent(2), Extent(3), Extent(4), Extent(5)]),
        ("Identity(five)", [Extent(5)]),
        ("Identity(small)", [Extent(6)]),
        ("Identity(byte)", [Extent(6)]),
        ("Identity(float)", None),
        ("Identity(matrix)", None),
        ("Cast<to = 7>(Cast<to = 6>(Shape(x)))", [B, H, W, C]),
        ("Squeeze(Shape(x))", [B, H, W, C]),
        ("Unsqueeze(Shape(x), zero)", [B, H, W, C]),
        ("Unsqueeze(Shape(x), Abs(zero))", [B, H, W, C]),
        ("Neg(Shape(x))", None),
        ("Concat<axis = 0>(Shape(x), pair)", [B, H, W, C, Extent(7), Extent(9)]),
        ("Concat<axis = 0>(pair, Shape(x), one)", [Extent(7), Extent(9), B, H, W, C, Extent(1)]),
        ("Concat<axis = 0>(Shape(x), Shape(Relu(x)))", None),
        ("Mul(Gather(Shape(x), one), three)", [Extent(3, 1)]),
        ("Mul(three, Gather(Shape(x), one))", [Extent(3, 1)]),
        ("Mul(two, three)", [Extent(6)]),
        ("Mul(Shape(x), three)", [Extent(3, axis) for axis in range(4)]),
        ("Mul(three, Shape(x))", [Extent(3, axis) for axis in range(4)]),
        ("Mul(Shape(x), quad)", [Extent(2 + axis, axis) for axis in range(4)]),
        ("Mul(quad, Shape(x))", [Extent(2 + axis, axis) for axis in range(4)]),
        ("Mul(quad, quad)", [Extent(4), Extent(9), Extent(16), Extent(25)]),
        ("Mul(Shape(x), Shape(x))", None),
        ("Mul(Gather(Shape(x), one), Shape(x))", None),
        ("Mul(Shape(x), pair)", None),
        ("Mul(pair, quad)", None),
        ("Mul(Shape(x), Shape(Relu(x)))", None),
        ("Add(Shape(x), one)", None),
        ("ReduceProd(Shape(x))", None),
        ("Gather(Shape(x), two)", [W]),
        ("Gather(Shape(x), five2)", [C]),
        ("Gather(Shape(x), several)", [C, B]),
        ("Gather(Shape(x), minus4)", [B]),
        ("Gather(Shape(x), minus5)", None),
        ("Gather(Shape(x), three)", [C]),
        ("Gather(Shape(x), four)", None),
        ("Gather(Shape(x), Abs(one))", None),
        ("Slice(Shape(x), one, three)", [H, W]),
        ("Slice(Shape(x), one, three, zero)", [H, W]),
        ("Slice(Shape(x), zero, three, zero, two)", [B, W]),
        ("Slice(Shape(x), last, zero, zero, last)", [C, W, H]),
        ("Slice(Shape(x), two, end)", [W, C]),
        ("Slice(Shape(x), zero, last)", [B, H, W]),
        ("Slice(Shape(x), pair, three)", None),
        ("Slice(Shape(x), one, pair)", None),
        ("Slice(Shape(x), Abs(one), three)", None),
    ],
)
def test_extents_follow_the_operators(lab, text, expected):
    image = {"x": np.ones((2, 5, 6, 3), np.float32)}
    model = lab.formula(f"{text}; Relu(x)", image, five2=np.array(3), **NUMBERS)
    assert (
        extents(
            model.graph.outputs[0] if text != "x" else model.graph.inputs[0], model.graph.inputs[0]
        )
        == expected
    )


@pytest.mark.parametrize("name", ["one", "float"])
def test_extents_of_a_constant(lab, name):
    model = lab.formula(f"Neg({name}); Relu(x)", {"x": np.ones(1, np.float32)}, **NUMBERS)
    expected = [Extent(1)] if name == "one" else None
    assert extents(model.graph.initializers[name], model.graph.inputs[0]) == expected
    assert extents(None, model.graph.inputs[0]) is None


def test_extents_need_the_rank(lab):
    model = lab.formula("Shape(x); Relu(x)", {"x": np.ones((2, 3), np.float32)})
    model.graph.inputs[0].shape = None
    assert extents(model.graph.outputs[0], model.graph.inputs[0]) is None
