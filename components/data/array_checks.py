"""Checks of input arrays; large arrays are read in pieces."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from qat_lib.errors import DataError

CHUNK_BYTES = 32 << 20
Array = npt.NDArray[Any]

ONLY_INPUT = "x"
"""Name of the input of a data set with one."""

INPUT_NAME = re.compile(r"\w[\w.-]*")
"""Names of inputs, which are parts of file names."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """Inputs by name, each ``(samples, ...)``, uint8 or floating, and targets ``(samples, ...)``.

    Arrays may be memory-mapped. Weights are float32 ``(samples,)``, or None.
    """

    inputs: Mapping[str, Array]
    targets: Array
    weights: Array | None = None


def check_part(
    name: str,
    inputs: Array | Mapping[str, Array],
    targets: Array,
    weights: Array | None = None,
) -> Part:
    """Check shape, data type and length of one part's arrays, and the values of its weights.

    A uint8 input ``(samples, height, width)`` gets an axis of channels.

    Raises:
        DataError: a check fails; the message names the first failure.
    """
    if not isinstance(inputs, Mapping):
        inputs = {ONLY_INPUT: inputs}
    checked, samples = {}, len(targets) if targets.ndim else 0
    for key, array in inputs.items():
        if not INPUT_NAME.fullmatch(key):
            raise DataError(
                f"{name}: expected names of inputs of letters, digits, '_', '-' and '.', received "
                f"{key!r:.100}"
            )
        what = _title(name, key, len(inputs))
        checked[key] = x = _check_input(what, array)
        if len(x) != samples:
            raise DataError(
                f"{what}: {len(x)} samples but {samples} targets; expected the same number"
            )
    if not checked:
        raise DataError(f"{name}: expected at least one input, received none")
    if weights is not None:
        weights = _check_weights(f"{name} weights", weights, samples)
    return Part(inputs=checked, targets=targets, weights=weights)


def _check_weights(what: str, weights: Array, samples: int) -> Array:
    """Return the weights of samples as float32."""
    if weights.shape == (samples, 1):
        weights = weights[:, 0]
    if weights.ndim != 1 or weights.dtype.kind not in "biuf":
        raise DataError(
            f"{what}: expected one number per sample, ({samples},); received {weights.dtype} "
            f"{weights.shape}"
        )
    if len(weights) != samples:
        raise DataError(f"{what}: {len(weights)} weights but {samples} targets; expected the same")
    found = weights.astype(np.float32)
    if (bad := ~(np.isfinite(found) & (found >= 0))).any():
        index = int(bad.argmax())
        raise DataError(
            f"{what}: expected finite numbers from 0, received {weights[index]} for sample {index}"
        )
    return found


def _title(part: str, key: str, count: int) -> str:
    return f"{part} inputs" if count == 1 else f"{part} inputs {key!r}"


def _check_input(what: str, x: Array) -> Array:
    if x.dtype != np.uint8 and not np.issubdtype(x.dtype, np.floating):
        raise DataError(
            f"{what}: expected uint8 or a floating type, received {x.dtype}: convert them first"
        )
    if x.ndim < 2:
        raise DataError(
            f"{what}: expected (samples, ...), such as (samples, features) or (samples, height, "
            f"width, channels); received {x.shape}"
        )
    # Gray images without an axis of channels. Floats of three dimensions may be signals and remain.
    if x.ndim == 3 and x.dtype == np.uint8:
        x = x[..., None]
    if len(x) == 0:
        raise DataError(f"{what}: expected at least one sample, received the shape {x.shape}")
    if min(x.shape[1:]) < 1:
        raise DataError(
            f"{what}: expected a size of at least 1 in each dimension, received {x.shape}"
        )
    # Up to 4 rows the order is ambiguous: (samples, 3, 3, 3) passes.
    if x.ndim == 4 and x.shape[1] in (1, 3) and x.shape[2] == x.shape[3] and x.shape[2] > 4:
        raise DataError(
            f"{what}: {x.shape} looks like (samples, channels, height, width); expected "
            "the channels last: np.transpose(x, (0, 2, 3, 1))"
        )
    return x


def check_together(parts: Mapping[str, Part]) -> None:
    """Check that all parts have equal inputs and targets, apart from the number of samples.

    Raises:
        DataError: names, shapes or data types differ.
    """
    train = parts["train"]
    for name, part in parts.items():
        if set(part.inputs) != set(train.inputs):
            raise DataError(
                f"the {name} part has the inputs {', '.join(part.inputs)}, the train part "
                f"{', '.join(train.inputs)}: expected the same"
            )
        for key, x in part.inputs.items():
            ours, theirs = (x.dtype, x.shape[1:]), _kind(train.inputs[key])
            if ours != theirs:
                what = _title(name, key, len(part.inputs))
                raise DataError(
                    f"{what} are {ours[0]} {ours[1]}, train inputs {theirs[0]} {theirs[1]}: "
                    "expected the same"
                )
        if part.targets.shape[1:] != train.targets.shape[1:]:
            raise DataError(
                f"{name} targets are {part.targets.shape[1:]}, train targets "
                f"{train.targets.shape[1:]}: expected the same"
            )


def _kind(x: Array) -> tuple[Any, tuple[int, ...]]:
    return x.dtype, x.shape[1:]


def first_samples(part: Part, count: int) -> Part:
    """Return the first samples of a part."""
    inputs = {key: x[:count] for key, x in part.inputs.items()}
    weights = None if part.weights is None else part.weights[:count]
    return Part(inputs=inputs, targets=part.targets[:count], weights=weights)


def check_finite(name: str, part: Part, sample: Callable[[str, int], str] | None = None) -> None:
    """Check that floating inputs contain neither NaN nor infinity.

    Args:
        name: name of the part.
        part: its arrays.
        sample: returns the name of a sample; by default it is its index.

    Raises:
        DataError: a sample does; the message names the first one.
    """
    for key, x in part.inputs.items():
        if x.dtype == np.uint8:
            continue
        for start, chunk in chunks(x):
            bad = ~np.isfinite(chunk).reshape(len(chunk), -1).all(axis=1)
            if bad.any():
                index = start + int(bad.argmax())
                where = f"sample {index}" if sample is None else sample(name, index)
                raise DataError(
                    f"{_title(name, key, len(part.inputs))}: {where} holds NaN or infinity"
                )


def chunks(x: Array) -> Iterator[tuple[int, Array]]:
    """Yield ``(start, x[start:stop])`` in pieces of about 32 MiB."""
    step = max(1, CHUNK_BYTES // max(1, x.dtype.itemsize * int(np.prod(x.shape[1:]))))
    for start in range(0, len(x), step):
        yield start, x[start : start + step]
