"""Shapes that a graph computes, read from its operators."""

import numpy as np
import pytest

from qat_lib.export.passes.shape_arithmetic import Extent, extents

SHAPE = "shape = Shape(x)\n"
ONE = {"zero": np.array([0]), "one": np.array([1]), "two": np.array([2]), "three": np.array([3])}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("y = Slice(shape, one, three)", [Extent(1, 1), Extent(1, 2)]),
        ("y = Gather(shape, two)", [Extent(1, 2)]),
        ("a = Slice(shape, one, two)\nb = Mul(a, three)\ny = Concat<axis = 0>(b, two)", [Extent(3, 1), Extent(2)]),
        ("a = Cast<to = 6>(shape)\ny = Cast<to = 7>(a)", [Extent(1, axis) for axis in range(4)]),
        ("y = Mul(shape, shape)", None),
        ("y = Add(shape, one)", None),
        ("a = Relu(x)\nb = Shape(a)\ny = Mul(b, one)", None),
        ("a = Gather(shape, shape)\ny = Mul(a, one)", None),
    ],
)
def test_extents_follow_the_operators(lab, text, expected):
    model = lab.build(f"(float[b,h,w,3] x) => (int64[n] y) {{ {SHAPE}{text} }}", **ONE)
    assert extents(model.graph.outputs[0], model.graph.inputs[0]) == expected
