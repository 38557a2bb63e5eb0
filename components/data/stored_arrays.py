"""Arrays of a prepared data set."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from qat_lib.errors import DataError
from qat_lib.files.npy import load_npy, take_rows
from qatline.components.artifacts import Dataset
from qatline.components.artifacts.data_info import DatasetInfo
from qatline.components.data.array_checks import CHUNK_BYTES
from qatline.components.data.part import Array, Indices


def load_array(path: Path) -> Array:
    """Return an array of a data set, memory-mapped.

    Raises:
        DataError: it is missing or damaged.
    """
    try:
        return load_npy(path)
    except (OSError, ValueError) as error:
        raise DataError(f"{path} can't be read: {error}. Run prepare_data again.") from error


def read_targets(dataset: Dataset, split: str, info: DatasetInfo, samples: int) -> Array:
    """Return a part's targets: in memory, or memory-mapped above 32 MiB.

    Raises:
        DataError: the file is missing or damaged, or its shape is wrong.
    """
    targets = load_array(dataset.targets_file(split))
    if targets.shape != (samples, *info.target_shape):
        raise DataError(
            f"{dataset.path}: {split} holds {samples} inputs and targets {targets.dtype} "
            f"{targets.shape}, expected {(samples, *info.target_shape)}, one for each. Run "
            "prepare_data again."
        )
    return np.array(targets) if targets.nbytes <= CHUNK_BYTES else targets


def read_weights(dataset: Dataset, split: str, samples: int) -> Array | None:
    """Return a part's sample weights, float32 ``(samples,)``; None without such a file.

    Raises:
        DataError: the file is damaged, or its shape or type is wrong.
    """
    path = dataset.weights_file(split)
    if not path.is_file():
        return None
    weights = load_array(path)
    if weights.shape != (samples,) or weights.dtype != np.float32:
        raise DataError(
            f"{path} holds {weights.dtype} {weights.shape}, expected float32 ({samples},). Run "
            "prepare_data again."
        )
    return np.array(weights)


def write_targets(
    dataset: Dataset,
    split: str,
    targets: Array,
    indices: Indices,
    convert: Callable[[Array], Array],
) -> None:
    """Write a part's targets, block by block.

    Args:
        dataset: directory of the data set.
        split: name of the part.
        targets: targets of the source, possibly memory-mapped.
        indices: samples of the part in order.
        convert: returns targets in the type of the task.
    """

    def blocks() -> Iterator[Array]:
        row = max(1, int(np.prod(targets.shape[1:]))) * max(targets.dtype.itemsize, 8)
        step = max(1, CHUNK_BYTES // row)
        for start in range(0, max(len(indices), 1), step):
            yield convert(take_rows(targets, indices[start : start + step]))

    with dataset.targets_file(split).open("wb") as stream:
        for number, block in enumerate(blocks()):
            if number == 0:
                header = {
                    "descr": np.lib.format.dtype_to_descr(block.dtype),
                    "fortran_order": False,
                    "shape": (len(indices), *block.shape[1:]),
                }
                np.lib.format.write_array_header_1_0(stream, header)
            stream.write(np.ascontiguousarray(block).tobytes())
