"""Ranges of quantizers, for every front end: integers, least range, shapes and settings.

Needs NumPy only: Keras and PyTorch quantizers share these numbers and checks.
"""

from __future__ import annotations

from typing import Any, get_args

import numpy as np

from qat_lib.errors import SpecError
from qat_lib.options import RangePolicy, WeightRangePolicy

AMAX_FLOOR = 127.0 * 2.0**-24
"""Least range: the scale of a dead channel remains positive and representable in float16 (2**-24).
"""
INITIAL_AMAX = 6.0
"""Range of an activation until calibration or training sets it."""
SHARED_FALL = 32.0
"""Factor by which a range of several tensors falls slower than it rises, so that it covers the
widest tensor."""
RANGE_POLICIES = tuple(dict.fromkeys(get_args(RangePolicy) + get_args(WeightRangePolicy)))


def integer_bounds(
    num_bits: int, narrow_range: bool, unsigned: bool = False
) -> tuple[float, float]:
    """Return the least and greatest integer of a quantizer.

    For 8 bits they are -128 and 127, narrow -127, unsigned 0 and 255.
    """
    high = greatest_integer(num_bits, unsigned)
    if unsigned:
        return 0.0, high
    return (-high if narrow_range else -high - 1.0), high


def greatest_integer(num_bits: int, unsigned: bool) -> float:
    """Return the greatest integer: for 8 bits 127, unsigned 255."""
    return float(2 ** (num_bits if unsigned else num_bits - 1) - 1)


def least_step(high: float) -> np.float32:
    """Return the least float32 step whose range is at least ``AMAX_FLOOR``."""
    step = np.float32(AMAX_FLOOR) / np.float32(high)
    # The float32 quotient may be rounded down, and its range would then fall below the floor.
    while step * np.float32(high) < np.float32(AMAX_FLOOR):
        step = np.nextafter(step, np.float32(1))
    return step


def range_shape(
    input_shape: Any, channel_axes: tuple[int, ...] | None, name: str
) -> tuple[int, ...]:
    """Return the shape of a range: the sizes of the kept axes, 1 for the others.

    The shape of a single range is ``()``.

    Raises:
        SpecError: the tensor lacks a kept axis, or the size of that axis is unknown.
    """
    if channel_axes is None:
        return ()
    rank = len(input_shape)
    if beyond := [axis for axis in channel_axes if not -rank <= axis < rank]:
        raise SpecError(
            f"{name!r} keeps a range along axis {beyond[0]}, but its tensor has rank {rank}."
        )
    # Negative axes count from the end.
    kept = {axis % rank for axis in channel_axes}
    if unknown := [i for i in kept if input_shape[i] is None]:
        raise SpecError(
            f"{name!r} keeps a range along axis {unknown[0]}, whose size is unknown: {input_shape}."
        )
    return tuple(input_shape[i] if i in kept else 1 for i in range(rank))


def reduced_axes(rank: int, channel_axes: tuple[int, ...] | None) -> list[int]:
    """Return the axes of a tensor that share a range."""
    kept = {axis % rank for axis in channel_axes or ()}
    return [i for i in range(rank) if i not in kept]


def checked_range(name: str, value: Any, shape: tuple[int, ...] | None) -> np.ndarray:
    """Return a manual range as float32 in the shape of the quantizer.

    Values below ``AMAX_FLOOR`` are raised to it.

    Args:
        name: name of the quantizer, for the messages.
        value: number or array.
        shape: shape of the quantizer's range; None = any.

    Raises:
        SpecError: a value is negative or not finite, or the shape differs.
    """
    array = np.asarray(value, np.float32)
    if not np.all(np.isfinite(array)) or np.any(array < 0):
        raise SpecError(
            f"A range must be finite and not negative. Received for {name!r}: {value!r}."
        )
    floored = np.maximum(array, np.float32(AMAX_FLOOR))
    if shape is None:
        return np.asarray(floored)
    try:
        # A single number is allowed for a per-channel range.
        return np.broadcast_to(floored, shape)
    except ValueError as error:
        raise SpecError(
            f"The range of {name!r} has the shape {shape}. Received: {array.shape}."
        ) from error


def check_settings(
    num_bits: int, narrow_range: bool, unsigned: bool, range_policy: str, momentum: float
) -> None:
    """Check the settings of a quantizer.

    Raises:
        SpecError: a setting is out of range, or two settings contradict each other.
    """
    if range_policy not in RANGE_POLICIES:
        raise SpecError(
            f"range_policy must be one of {', '.join(RANGE_POLICIES)}. Received: {range_policy!r}."
        )
    # bool is a subclass of int.
    if isinstance(num_bits, bool) or not isinstance(num_bits, int) or not 2 <= num_bits <= 16:
        raise SpecError(f"num_bits must be an integer from 2 to 16. Received: {num_bits!r}.")
    if narrow_range and unsigned:
        raise SpecError(
            "unsigned integers have no narrow range: give narrow_range=True or unsigned=True, "
            "not both."
        )
    if not 0 <= momentum < 1:
        raise SpecError(f"momentum must be in [0, 1). Received: {momentum!r}.")
