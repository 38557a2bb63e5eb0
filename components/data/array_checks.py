"""Checks of image and label arrays; large arrays are read in pieces."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from qat_lib.errors import DataError
from qatline.components.support.other_tasks import OTHER_TASKS

CHUNK_BYTES = 32 << 20
Array = npt.NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class Part:
    """Images ``(samples, height, width, channels)``, uint8 or floating, and int64 labels.

    ``x`` may be memory-mapped.
    """

    x: Array
    y: npt.NDArray[np.int64]


def check_part(name: str, x: Array, y: Array) -> Part:
    """Check one part's shape, data type, length and labels.

    Labels must be whole non-negative numbers.

    Raises:
        DataError: a check fails; the message names the first failure.
    """
    if x.ndim not in (3, 4):
        raise DataError(
            f"{name} images: expected (samples, height, width, channels) or (samples, height, "
            f"width); received {x.shape}"
        )
    if x.ndim == 3:
        x = x[..., None]
    if len(x) == 0:
        raise DataError(
            f"{name} images: expected at least one sample, received the shape {x.shape}"
        )
    if min(x.shape[1:]) < 1:
        raise DataError(
            f"{name} images: expected a size of at least 1 in each dimension, received {x.shape}"
        )
    if x.shape[1] in (1, 3) and x.shape[2] == x.shape[3] and x.shape[2] > 4:
        raise DataError(
            f"{name} images: {x.shape} looks like (samples, channels, height, width); expected "
            "the channels last: np.transpose(x, (0, 2, 3, 1))"
        )
    if x.dtype != np.uint8 and not np.issubdtype(x.dtype, np.floating):
        raise DataError(
            f"{name} images: expected uint8 or a floating type, received {x.dtype}: convert them "
            "first"
        )
    return Part(x=x, y=check_labels(name, y, len(x)))


def check_together(parts: Mapping[str, Part], classes: Sequence[str] | None) -> tuple[str, ...]:
    """Check the consistency of all parts and return the names of the classes.

    Raises:
        DataError: shapes or data types differ, there is only one class, a label is out of range, or
            a class has no samples.
    """
    train = parts["train"]
    for name, part in parts.items():
        if part.x.shape[1:] != train.x.shape[1:] or part.x.dtype != train.x.dtype:
            raise DataError(
                f"{name} images are {part.x.dtype} {part.x.shape[1:]}, train images "
                f"{train.x.dtype} {train.x.shape[1:]}: expected the same"
            )
    count = len(classes) if classes else int(train.y.max()) + 1
    if count > len(train.y):
        raise DataError(
            f"labels: the largest is {train.y.max()} with {len(train.y)} samples; expected class "
            "indices 0, 1, 2, ..."
        )
    for name, part in parts.items():
        if (top := int(part.y.max())) >= count:
            raise DataError(
                f"{name} labels: expected 0 to {count - 1} ({count} classes), received {top}"
            )
    present = np.bincount(train.y, minlength=count)
    if np.count_nonzero(present) < 2:
        raise DataError(
            f"labels: expected at least two classes, received only class {int(train.y[0])}"
        )
    if (absent := int(present.argmin())) >= 0 and present[absent] == 0:
        raise DataError(
            f"labels: class {absent} of 0 to {count - 1} has no sample; expected every index to "
            "be used"
        )
    return tuple(classes) if classes else tuple(str(index) for index in range(count))


def check_finite(name: str, x: Array) -> None:
    """Check that a floating array contains neither NaN nor infinity.

    Raises:
        DataError: a sample does; the message names the first one.
    """
    if x.dtype == np.uint8:
        return
    for start, chunk in chunks(x):
        bad = ~np.isfinite(chunk).reshape(len(chunk), -1).all(axis=1)
        if bad.any():
            raise DataError(
                f"{name} images: sample {start + int(bad.argmax())} holds NaN or infinity"
            )


def chunks(x: Array) -> Iterator[tuple[int, Array]]:
    """Yield ``(start, x[start:stop])`` in pieces of about 32 MiB."""
    step = max(1, CHUNK_BYTES // max(1, x.dtype.itemsize * int(np.prod(x.shape[1:]))))
    for start in range(0, len(x), step):
        yield start, x[start : start + step]


def check_labels(name: str, y: Array, samples: int) -> npt.NDArray[np.int64]:
    """Return labels as int64 ``(samples,)``.

    Raises:
        DataError: they are not one class index per sample.
    """
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1:
        hint = " (one-hot labels: use y.argmax(axis=1))" if y.ndim == 2 else ""
        raise DataError(
            f"{name} labels: expected (samples,), received {y.shape}{hint}. {OTHER_TASKS}"
        )
    if len(y) != samples:
        raise DataError(f"{name}: {samples} images but {len(y)} labels; expected the same number")
    if not (np.issubdtype(y.dtype, np.integer) or np.issubdtype(y.dtype, np.floating)):
        raise DataError(f"{name} labels: expected integers, received {y.dtype}")
    if np.issubdtype(y.dtype, np.floating) and (bad := ~np.isfinite(y) | (y != np.floor(y))).any():
        raise DataError(
            f"{name} labels: expected whole numbers, received values such as {y[bad][0]}. "
            f"{OTHER_TASKS}"
        )
    if (low := y.min()) < 0:
        raise DataError(f"{name} labels: expected 0, 1, 2, ..., received {low}")
    if y.max() > np.iinfo(np.int32).max:
        raise DataError(f"{name} labels: expected class indices, received {y.max()}")
    return y.astype(np.int64)
