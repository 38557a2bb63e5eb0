"""Shapes of ranges, and the least step."""

import numpy as np
import pytest

from qat_lib.core.ranges import AMAX_FLOOR, integer_bounds, least_step, range_shape, reduced_axes
from qat_lib.errors import SpecError


@pytest.mark.parametrize(
    ("axes", "shape", "reduced"),
    [
        (None, (), [0, 1, 2]),
        ((), (1, 1, 1), [0, 1, 2]),
        ((0,), (4, 1, 1), [1, 2]),
        ((-1,), (1, 1, 6), [0, 1]),
        ((-3, 2), (4, 1, 6), [1]),
        ((0, -3), (4, 1, 1), [1, 2]),
        ((0, 1, 2), (4, 5, 6), []),
    ],
)
def test_range_shape_keeps_the_named_axes(
    axes: tuple[int, ...] | None, shape: tuple[int, ...], reduced: list[int]
) -> None:
    assert range_shape((4, 5, 6), axes, "q") == shape
    assert reduced_axes(3, axes) == reduced


@pytest.mark.parametrize(("axes", "named"), [((3,), 3), ((-4,), -4), ((0, 5, 7), 5)])
def test_range_shape_names_the_first_axis_beyond(axes: tuple[int, ...], named: int) -> None:
    with pytest.raises(SpecError, match=f"along axis {named}, but its tensor has rank 3"):
        range_shape((4, 5, 6), axes, "q")


def test_range_shape_names_axis_of_unknown_size() -> None:
    with pytest.raises(SpecError, match=r"along axis 1, whose size is unknown: \(4, None, None\)"):
        range_shape((4, None, None), (0, 1), "q")
    assert range_shape((4, None, None), (0,), "q") == (4, 1, 1)


@pytest.mark.parametrize("bits", range(2, 17))
@pytest.mark.parametrize("unsigned", [False, True])
def test_least_step_keeps_range_above_floor(bits: int, unsigned: bool) -> None:
    high = np.float32(integer_bounds(bits, False, unsigned)[1])
    step, floor = least_step(float(high)), np.float32(AMAX_FLOOR)
    assert step.dtype == np.float32
    assert step * high >= floor
    quotient = floor / high
    assert step == quotient or np.nextafter(step, np.float32(0)) * high < floor
    assert step <= np.nextafter(np.nextafter(quotient, np.float32(1)), np.float32(1))


@pytest.mark.parametrize(
    ("bits", "narrow", "unsigned", "bounds"),
    [
        (8, False, False, (-128, 127)),
        (8, True, False, (-127, 127)),
        (8, False, True, (0, 255)),
        (2, False, False, (-2, 1)),
        (2, True, False, (-1, 1)),
        (16, False, True, (0, 65535)),
    ],
)
def test_integer_bounds(
    bits: int, narrow: bool, unsigned: bool, bounds: tuple[float, float]
) -> None:
    assert integer_bounds(bits, narrow, unsigned) == bounds


def test_floor_is_least_positive_scale_of_float16() -> None:
    assert np.float16(AMAX_FLOOR / 127) == np.float16(2.0**-24) > 0
