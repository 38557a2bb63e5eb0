"""Reader of the prepared data set for training, calibration, parity and evaluation.

Pixels are always decoded by Pillow or memory-mapped, and preprocessed by NumPy, both for
``tf.data`` pipelines and for arrays. The engine thereby receives the same inputs as the model in
training.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from qat_lib.errors import DataError
from qat_lib.files.npy import load_npy
from qat_lib.files.text_files import read_json
from qat_lib.preprocessing import FloatBatch, Preprocessing
from qatline.components.artifacts import Dataset
from qatline.components.artifacts.data_info import DatasetInfo
from qatline.components.data.images import load_image
from qatline.components.data.part import Labels, Split
from qatline.components.data.shards import ShardSplit

# The list of a million images has about 50 MiB.
_LISTING_BYTES = 1 << 30

__all__ = [
    "ArraySplit",
    "DatasetInfo",
    "FileSplit",
    "Labels",
    "ShardSplit",
    "Split",
    "load_split",
    "numpy_batches",
    "open_split",
    "tf_dataset",
]


class ArraySplit:
    """A part stored in two ``.npy`` files; the images are memory-mapped."""

    def __init__(self, dataset: Dataset, split: str) -> None:
        self._x = _load_array(dataset.images_file(split))
        self.labels: Labels = np.array(_load_array(dataset.labels_file(split)))
        shapes = (
            f"{self._x.dtype} {self._x.shape} and labels {self.labels.dtype} {self.labels.shape}"
        )
        if self._x.ndim != 4 or self.labels.ndim != 1 or self.labels.dtype.kind not in "iu":
            raise DataError(
                f"{dataset.path}: {split} holds images {shapes}. Run prepare_data again."
            )
        if len(self._x) != len(self.labels):
            raise DataError(
                f"{dataset.path}: {split} holds images {shapes}, one for each. Run prepare_data "
                "again."
            )

    def pixels(self, indices: Labels) -> npt.NDArray[Any]:
        """Return raw images, copied from disk."""
        return np.asarray(self._x[indices])


class FileSplit:
    """A part stored as image files, decoded by a few threads."""

    def __init__(
        self, dataset: Dataset, split: str, info: DatasetInfo, preprocessing: Preprocessing
    ) -> None:
        listed = _load_files(dataset.listing_file(split))
        self._root = Path(info.root or "")
        self._paths = [path for path, _ in listed]
        self._color = preprocessing.color
        self._size = info.image_shape[:2] if preprocessing.resize else None
        self._shape = info.image_shape
        self._pool = ThreadPoolExecutor(
            max_workers=min(8, os.cpu_count() or 1), thread_name_prefix="decode"
        )
        self.labels: Labels = np.array([label for _, label in listed], np.int64)

    def pixels(self, indices: Labels) -> npt.NDArray[Any]:
        """Return raw images, decoded from their files.

        Raises:
            DataError: an image is missing, broken or of another size since the data set was
                prepared.
        """
        images = list(self._pool.map(self._load, indices))
        return np.stack(images) if images else np.empty((0, *self._shape), np.uint8)

    def _load(self, index: int) -> npt.NDArray[np.uint8]:
        path = self._root / self._paths[index]
        image = load_image(path, self._color, self._size)
        if image.shape != self._shape:
            raise DataError(
                f"the image {path} is {image.shape} now, expected {self._shape}: run prepare_data "
                "again"
            )
        return image


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
        return ShardSplit(opened, split, info, opened.preprocessing())
    if info.root is None:
        return ArraySplit(opened, split)
    return FileSplit(opened, split, info, opened.preprocessing())


def load_split(
    dataset: Path, split: str, *, raw: bool = False, limit: int | None = None
) -> tuple[npt.NDArray[Any], Labels]:
    """Load one part, or its first ``limit`` samples, into memory.

    The order within a part is already random.

    Args:
        dataset: directory of the prepared data set.
        split: name of the part.
        raw: whether to return raw pixels instead of the model's input.
        limit: number of samples; None for all. Use ``numpy_batches`` for large parts.

    Returns:
        Images ``(samples, height, width, channels)``, float32 or raw, and int64 labels
        ``(samples,)``.
    """
    part = open_split(dataset, split)
    indices = np.arange(len(part.labels), dtype=np.int64)[:limit]
    pixels = part.pixels(indices)
    images = pixels if raw else Dataset(dataset).preprocessing().apply(pixels)
    return images, part.labels[indices]


def numpy_batches(
    dataset: Path, split: str, batch_size: int
) -> Iterator[tuple[FloatBatch, Labels]]:
    """Yield ``(x, y)`` batches of a part in order, without importing TensorFlow.

    The last batch may be smaller. ``x`` is the model's input, float32 ``(batch, height, width,
    channels)``; ``y`` is int64 ``(batch,)``.
    """
    part, preprocessing = open_split(dataset, split), Dataset(dataset).preprocessing()
    for start in range(0, len(part.labels), batch_size):
        indices = np.arange(start, min(start + batch_size, len(part.labels)), dtype=np.int64)
        yield preprocessing.apply(part.pixels(indices)), part.labels[indices]


def tf_dataset(
    dataset: Path,
    split: str,
    batch_size: int,
    *,
    shuffle_seed: int | None = None,
    augment: str = "none",
    repeat: bool = False,
    worker: tuple[int, int] = (0, 1),
) -> Any:
    """Return one part as a ``tf.data.Dataset`` of ``(x, y)``.

    See ``qatline.components.data.tf_pipeline``.
    """
    from qatline.components.data.tf_pipeline import build_dataset

    return build_dataset(
        open_split(dataset, split),
        Dataset(dataset).preprocessing(),
        batch_size,
        shuffle_seed=shuffle_seed,
        augment=augment,
        repeat=repeat,
        worker=worker,
    )


def _load_array(path: Path) -> npt.NDArray[Any]:
    try:
        return load_npy(path)
    except (OSError, ValueError) as error:
        raise DataError(f"{path} can't be read: {error}. Run prepare_data again.") from error


def _load_files(path: Path) -> list[tuple[str, int]]:
    try:
        listed = read_json(path, what="a list of images", error=DataError, limit=_LISTING_BYTES)
        return [(str(name), int(label)) for name, label in listed]
    except DataError:
        raise
    except (ValueError, TypeError) as error:
        raise DataError(f"{path} can't be read: {error}. Run prepare_data again.") from error
