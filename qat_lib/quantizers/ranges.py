"""Shapes and units of a quantizer's range: kept axes, and the least step."""

from __future__ import annotations

from typing import Any

import numpy as np

from qat_lib.errors import SpecError
from qat_lib.quantizers.fake_quantize import AMAX_FLOOR


def range_shape(
    input_shape: Any, channel_axes: tuple[int, ...] | None, name: str
) -> tuple[int, ...]:
    """Return a range's shape: the sizes of kept axes, 1 elsewhere; ``()`` for one range.

    Raises:
        SpecError: the tensor lacks a kept axis, or its size is unknown.
    """
    if channel_axes is None:
        return ()
    rank = len(input_shape)
    if beyond := [axis for axis in channel_axes if not -rank <= axis < rank]:
        raise SpecError(
            f"{name!r} keeps a range along axis {beyond[0]}, but its tensor has rank {rank}."
        )
    kept = {axis % rank for axis in channel_axes}
    if unknown := [i for i in kept if input_shape[i] is None]:
        raise SpecError(
            f"{name!r} keeps a range along axis {unknown[0]}, whose size is unknown: {input_shape}."
        )
    return tuple(input_shape[i] if i in kept else 1 for i in range(rank))


def reduced_axes(rank: int, channel_axes: tuple[int, ...] | None) -> list[int]:
    """Return the axes of a tensor over which a range reaches."""
    kept = {axis % rank for axis in channel_axes or ()}
    return [i for i in range(rank) if i not in kept]


def least_step(high: float) -> np.float32:
    """Return the least step whose range is not below ``AMAX_FLOOR``, in float32."""
    step = np.float32(AMAX_FLOOR) / np.float32(high)
    while step * np.float32(high) < np.float32(AMAX_FLOOR):
        step = np.nextafter(step, np.float32(1))
    return step
