"""Model inputs and targets from ``.npz`` and ``.npy`` files, without preprocessing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qat_lib.errors import DataError
from qat_lib.files.npy import load_npy, take_rows
from qat_lib.preprocessing import as_float32
from qatline.components.data.array_checks import Array
from qatline.components.data.npz_source import PAIRS, find_part, unpack_npz
from qatline.components.data.part import Batch, Indices, Shape
from qatline.components.data.splits import stratified_subset

TEST_PAIRS = (*PAIRS["test"], ("x", "y"), ("images", "labels"))
"""Names of arrays for evaluation, without those of a training part."""

_VALIDATION_SHARE = 0.2


@dataclass(frozen=True, kw_only=True)
class Labelled:
    """Inputs ``(samples, ...)``, in memory or memory-mapped, and targets ``(samples, ...)``.

    Attributes:
        x: an array, or several by the names of the model's inputs.
        targets: the targets.
        weights: weights of the samples in a training, float32 ``(samples,)``; None for no weights.
    """

    x: Array | Mapping[str, Array]
    targets: Array
    weights: Array | None = None

    def inputs(self, indices: Indices | slice) -> Batch:
        """Return the inputs of some samples."""
        if isinstance(self.x, Mapping):
            return {name: take_rows(array, indices) for name, array in self.x.items()}
        return take_rows(self.x, indices)

    @property
    def input_shape(self) -> Shape | dict[str, Shape]:
        """Shape of one sample of the input, or of each input by name."""
        if isinstance(self.x, Mapping):
            return {name: array.shape[1:] for name, array in self.x.items()}
        return self.x.shape[1:]

    def rows(self, indices: Indices) -> Labelled:
        """Return some samples."""
        weights = None if self.weights is None else self.weights[indices]
        targets = take_rows(self.targets, indices)
        return Labelled(x=self.inputs(indices), targets=targets, weights=weights)


@dataclass(frozen=True, kw_only=True)
class AsFloat:
    """Preprocessing of data in the form of model input: cast to float32.

    Attributes:
        image_shape: shape of one sample of the input, or of each input by name.
    """

    image_shape: Shape | Mapping[str, Shape]

    def apply(self, batch: Any) -> Any:
        """Return the batch in float32."""
        if isinstance(batch, Mapping):
            return {name: as_float32(array) for name, array in batch.items()}
        return as_float32(batch)


def read_labelled(
    data: Path, labels: Path | None, scratch: Path, names: Sequence[tuple[str, str]]
) -> Labelled:
    """Read inputs and targets.

    Args:
        data: a ``.npz`` file of both, or a ``.npy`` file of inputs.
        labels: a ``.npy`` file of targets if ``data`` is a ``.npy`` file.
        scratch: folder for the unpacked arrays of a ``.npz`` file.
        names: pairs of names in a ``.npz`` file; the first existing pair is used.

    Raises:
        DataError: a file is missing, damaged, or has another content, or inputs and labels do not
            match.
    """
    return read_parts(data, labels, scratch, {"data": names})["data"]


def read_training(
    data: Path, labels: Path | None, scratch: Path, *, seed: int
) -> tuple[Labelled, Labelled]:
    """Read training and validation samples.

    A ``.npz`` file may contain a validation part, ``x_val`` and ``y_val``; otherwise a fifth of the
    samples is used, with the classes in proportion if the targets are whole numbers.

    Args:
        data: as in ``read_labelled``.
        labels: as in ``read_labelled``.
        scratch: as in ``read_labelled``.
        seed: seed of the selection.

    Raises:
        DataError: as in ``read_labelled``, or there are fewer than two samples.
    """
    parts = read_parts(
        data, labels, scratch, {name: PAIRS[name] for name in ("train", "validation")}
    )
    train = parts["train"]
    if "validation" in parts:
        return train, parts["validation"]
    return _split(train, data, seed)


def read_parts(
    data: Path,
    labels: Path | None,
    scratch: Path,
    parts: Mapping[str, Sequence[tuple[str, str]]],
) -> dict[str, Labelled]:
    """Return the parts found in the files.

    Args:
        data: as in ``read_labelled``.
        labels: as in ``read_labelled``.
        scratch: as in ``read_labelled``.
        parts: pairs of names of each part; the first part is required.

    Raises:
        DataError: as in ``read_labelled``.
    """
    if not data.is_file():
        raise DataError(f"{data} does not exist. Expected a .npz or .npy file.")
    first = next(iter(parts))
    if data.suffix != ".npz":
        if labels is None:
            raise DataError(
                f"Expected --labels with {data}, a .npy file of inputs alone. Give both, or a "
                ".npz file that holds x and y."
            )
        return {first: _checked(_load(data), _load(labels), str(data))}
    if labels is not None:
        raise DataError(f"Expected no --labels with {data}: a .npz file contains its own.")
    arrays, found = unpack_npz(data, scratch), {}
    for part, names in parts.items():
        if (pair := find_part(part, names, arrays, data)) is not None:
            found[part] = _checked(*pair, f"{data}, {part} part" if len(parts) > 1 else str(data))
    if first not in found:
        known = ", ".join(f"{x} and {y}" for x, y in parts[first])
        raise DataError(
            f"{data}: expected arrays named {known}; received {', '.join(sorted(arrays)) or 'none'}."
        )
    return found


def _checked(x: Array | Mapping[str, Array], y: Array, name: str) -> Labelled:
    for array in x.values() if isinstance(x, Mapping) else [x]:
        if array.ndim < 2 or not len(array):
            raise DataError(
                f"{name}: expected inputs (samples, ...) with at least one sample, received "
                f"{array.shape}."
            )
        if not y.ndim or len(array) != len(y):
            raise DataError(
                f"{name}: {len(array)} inputs but {len(y) if y.ndim else 0} labels; expected the "
                "same number"
            )
    return Labelled(x=x, targets=y)


def _load(path: Path) -> Array:
    try:
        return load_npy(path)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise DataError(f"{path} can't be read: {reason}.") from error


def _split(whole: Labelled, data: Path, seed: int) -> tuple[Labelled, Labelled]:
    count = len(whole.targets)
    if count < 2:
        raise DataError(
            f"{data}: expected at least 2 samples to train and validate on, received 1."
        )
    classes = np.zeros(count, np.int64)
    if whole.targets.size == count and whole.targets.dtype.kind in "iu":
        _, classes = np.unique(whole.targets.ravel(), return_inverse=True)
    share = min(count - 1, max(1, round(_VALIDATION_SHARE * count)))
    taken = stratified_subset(classes, share, seed=seed, classes=int(classes.max()) + 1)
    rest = np.setdiff1d(np.arange(count), taken)
    return whole.rows(rest), whole.rows(taken)
