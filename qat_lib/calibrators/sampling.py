"""Sampling of large tensors in calibration: all outliers, and a sample of the other elements."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

PER_SAMPLE = 4096
"""Approximate number of counted elements of each sample of a tensor, for many samples."""
IN_ALL = 2**18
"""Least number of counted elements of a tensor, if the number of samples is known beforehand."""
TAIL = 0.999
"""Share of a tensor's elements covered by sampling; larger magnitudes are all counted."""
PART = 1 << 18
"""Elements processed together: as many as fit into a core's cache."""


def sample_positions(array: np.ndarray, axis: int, budget: int) -> tuple[np.ndarray, int]:
    """Return evenly spaced positions of a tensor, each with all its channels.

    A position is a place in a sample, such as a pixel. Positions are numbered across samples,
    independent of the layout.

    Args:
        array: a tensor; its first axis is that of the samples.
        axis: the axis of its channels.
        budget: approximate number of elements of each sample; at least one position is taken.

    Returns:
        The sample, and the number of elements represented by each of its elements: the array itself
        and 1 if everything is taken.
    """
    if array.ndim < 3:
        return array, 1
    rows = np.moveaxis(array, axis, -1)
    step = sampling_step(rows.shape[1:-1], rows.shape[-1], budget)
    if step == 1:
        return array, 1
    # Start in the middle of a step: the first position of a tensor is always a corner.
    places = np.arange(step // 2, math.prod(rows.shape[:-1]), step)
    return rows[np.unravel_index(places, rows.shape[:-1])], step


def sampling_step(positions: Sequence[int], channels: int, budget: int) -> int:
    """Return the distance between two sampled positions.

    The step is coprime to every size, so that the sample covers all rows and columns.
    """
    count = math.prod(positions)
    # Ceiling division. `count - 1` is coprime to every size, so the loop below ends there at the
    # latest, and every sample has a position.
    step = min(-(-count * channels // budget), count - 1)
    if step <= 1:
        return 1
    while any(math.gcd(step, size) > 1 for size in positions):
        step += 1
    return step


@dataclass(frozen=True, kw_only=True)
class Counted:
    """Elements of an array to count.

    Attributes:
        values: magnitudes, each array with the number of elements represented by an element, and
            with gains, if any.
        largest: the largest magnitude of all; NaN or infinite if an element is.
        negative: whether an element is negative.
        threshold: magnitude above which every element counts; None if all elements count.
    """

    values: list[tuple[np.ndarray, int, np.ndarray | None]]
    largest: float
    negative: bool
    threshold: float | None


def count_array(
    array: np.ndarray,
    axis: int,
    budget: int,
    threshold: float | None,
    *,
    unsigned: bool,
    gains: np.ndarray | None = None,
) -> Counted:
    """Return the elements to count: a sample of an array, and all elements above a threshold.

    Args:
        array: float32, with the samples along its first axis; not empty.
        axis: the axis of its channels.
        budget: approximate number of elements of each sample.
        threshold: magnitude above which every element counts; None = the quantile ``TAIL``.
        unsigned: whether the magnitude of negative elements is 0.
        gains: squared gain of each channel. Default None.
    """
    magnitude: Callable[[np.ndarray], np.ndarray] = _positive_part if unsigned else np.abs
    sample, weight = sample_positions(array, axis, budget)
    if weight == 1:
        values = magnitude(array)
        return Counted(
            values=[(values, 1, None if gains is None else along(gains, axis, array.ndim))],
            largest=float(values.max()),
            negative=bool(array.min() < 0),
            threshold=threshold,
        )
    distances = np.abs(sample)
    if threshold is None:
        threshold = float(np.quantile(distances, TAIL))
    far, negative = beyond(array, threshold)
    is_near = distances <= threshold
    of_far = of_near = None
    if gains is not None:
        of_far = gains[_channels(array, axis, far)]
        of_near = np.broadcast_to(gains, sample.shape)[is_near]
    far, near = magnitude(array.ravel(order="K")[far]), magnitude(sample[is_near])
    largest = float(far.max(initial=0.0))
    # Without outliers, the sample may miss the largest element. Negative outliers of an unsigned
    # tensor have the magnitude 0. The comparison is also false for NaN.
    if not largest > threshold:
        ends = (0.0, array.max()) if unsigned else (-array.min(), array.max())
        largest = float(np.max(ends))
    return Counted(
        values=[(far, 1, of_far), (near, weight, of_near)],
        largest=largest,
        negative=negative,
        threshold=threshold,
    )


def _positive_part(x: np.ndarray) -> np.ndarray:
    return np.asarray(np.maximum(x, 0))


def beyond(array: np.ndarray, threshold: float) -> tuple[np.ndarray, bool]:
    """Return the positions of elements above a magnitude, and whether an element is negative.

    Positions refer to memory order (``ravel(order="K")``). NaN counts as larger.
    """
    found, negative = [], False
    flat = array.ravel(order="K")
    for start in range(0, flat.size, PART):
        part = flat[start : start + PART]
        negative = negative or bool(part.min() < 0)
        magnitude = np.abs(part) if negative else part
        # The negation includes NaN, for which every comparison is false.
        found.append(start + np.flatnonzero(~(magnitude <= threshold)))
    return np.concatenate(found), negative


def along(gains: np.ndarray, axis: int, rank: int) -> np.ndarray:
    """Return the gain of each channel in a shape that broadcasts against a tensor."""
    return gains.reshape([-1 if number == axis else 1 for number in range(rank)])


def _channels(array: np.ndarray, axis: int, places: np.ndarray) -> np.ndarray:
    """Return the channel of each position in memory."""
    inner = 1
    for size, stride in zip(array.shape, array.strides, strict=True):
        # Axes with smaller strides vary faster in memory than the channels.
        if stride < array.strides[axis]:
            inner *= size
    return np.asarray(places // inner % array.shape[axis])
