"""Reader of the prepared data set for training, calibration, parity and evaluation.

Images have Pillow's pixels, arrays are memory-mapped, and NumPy preprocesses both, for ``tf.data``
pipelines as for arrays. The engine thereby receives the same inputs as the model in training.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from qat_lib.errors import DataError
from qat_lib.files.npy import take_rows
from qat_lib.preprocessing import Preprocessing
from qatline.components.artifacts import Dataset
from qatline.components.artifacts.data_info import DatasetInfo
from qatline.components.data.image_split import FileSplit, ShardSplit
from qatline.components.data.part import Array, Augment, Batch, Indices, Mirrored, Split
from qatline.components.data.stored_arrays import load_array, read_targets, read_weights

__all__ = [
    "ArraySplit",
    "DatasetInfo",
    "FileSplit",
    "ShardSplit",
    "Split",
    "load_split",
    "numpy_batches",
    "open_split",
    "tf_dataset",
]


class ArraySplit:
    """A part stored in ``.npy`` files, one per input; they are memory-mapped."""

    def __init__(self, dataset: Dataset, split: str, info: DatasetInfo) -> None:
        self._only = len(info.inputs) == 1
        self._arrays = {}
        for name, expected in info.inputs.items():
            x = load_array(dataset.input_file(split, "" if self._only else name))
            if x.ndim == 0 or x.shape[1:] != expected.shape or x.dtype.name != expected.dtype:
                raise DataError(
                    f"{dataset.path}: {split} holds {x.dtype} {x.shape}, expected "
                    f"{expected.dtype} of shape {expected.shape} per sample. Run prepare_data "
                    "again."
                )
            self._arrays[name] = x
        samples = {len(x) for x in self._arrays.values()}
        if len(samples) > 1:
            raise DataError(
                f"{dataset.path}: the inputs of {split} have {sorted(samples)} samples, expected "
                "one for each. Run prepare_data again."
            )
        self.targets = read_targets(dataset, split, info, samples.pop())
        self.weights = read_weights(dataset, split, len(self.targets))

    def inputs(self, indices: Indices) -> Batch:
        """Return raw inputs, copied from disk."""
        found = {name: take_rows(x, indices) for name, x in self._arrays.items()}
        return next(iter(found.values())) if self._only else found


def open_split(dataset: Path, split: str) -> Split:
    """Open one part: ``train``, ``calibration``, ``validation`` or ``test``.

    Raises:
        DataError: the part does not exist, or its files are damaged.
    """
    opened = Dataset(dataset)
    info = opened.info()
    if split not in info.splits:
        raise DataError(f"{dataset} has the parts {', '.join(info.splits)}; received {split!r}")
    if opened.shards_file(split).is_file():
        return ShardSplit(opened, split, info, _of_images(opened))
    if info.root is None:
        return ArraySplit(opened, split, info)
    return FileSplit(opened, split, info, _of_images(opened))


def _of_images(dataset: Dataset) -> Preprocessing:
    preprocessing = dataset.preprocessing()
    if not isinstance(preprocessing, Preprocessing) or len(preprocessing.image_shape) != 3:
        raise DataError(
            f"{dataset.path}: expected the preprocessing of images, received one of "
            f"{preprocessing.image_shape}. Run prepare_data again."
        )
    return preprocessing


def load_split(
    dataset: Path, split: str, *, raw: bool = False, limit: int | None = None
) -> tuple[Any, Array]:
    """Load one part, or its first ``limit`` samples, into memory.

    The order within a part is already random.

    Args:
        dataset: directory of the prepared data set.
        split: name of the part.
        raw: whether to return raw inputs instead of the model's.
        limit: number of samples; None for all. Use ``numpy_batches`` for large parts.

    Returns:
        Inputs ``(samples, ...)``, float32 or raw, or several by name; and targets
        ``(samples, ...)``.
    """
    part = open_split(dataset, split)
    indices = np.arange(len(part.targets), dtype=np.int64)[:limit]
    inputs = part.inputs(indices)
    return (
        inputs if raw else Dataset(dataset).preprocessing().apply(inputs),
        take_rows(part.targets, indices),
    )


def numpy_batches(
    dataset: Path, split: str, batch_size: int, *, limit: int | None = None
) -> Iterator[tuple[Any, Array]]:
    """Yield ``(x, y)`` batches of a part, or of its first ``limit`` samples, in order.

    TensorFlow is not imported.

    The last batch may be smaller. ``x`` is the model's input, float32 ``(batch, ...)``, or several
    by name; ``y`` are the targets ``(batch, ...)``.
    """
    part, preprocessing = open_split(dataset, split), Dataset(dataset).preprocessing()
    count = len(part.targets[:limit])
    for start in range(0, count, batch_size):
        indices = np.arange(start, min(start + batch_size, count), dtype=np.int64)
        yield (
            preprocessing.apply(part.inputs(indices)),
            take_rows(part.targets, indices),
        )


def tf_dataset(
    dataset: Path,
    split: str,
    batch_size: int,
    *,
    shuffle_seed: int | None = None,
    augment: Augment = "none",
    mirrored: Mirrored | None = None,
    repeat: bool = False,
    worker: tuple[int, int] = (0, 1),
) -> Any:
    """Return one part as a ``tf.data.Dataset`` of ``(x, y)``, or ``(x, y, weights)``.

    See ``qatline.components.data.tf_pipeline``.
    """
    from qatline.components.data.tf_pipeline import build_dataset

    return build_dataset(
        open_split(dataset, split),
        Dataset(dataset).preprocessing(),
        batch_size,
        shuffle_seed=shuffle_seed,
        augment=augment,
        mirrored=mirrored,
        repeat=repeat,
        worker=worker,
    )
