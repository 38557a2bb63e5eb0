"""Read untrusted NumPy files: ``.npy`` mapped from disk, ``.npz`` in memory."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from qat_lib.files.archives import open_archive
from qat_lib.files.regular_files import open_regular


def load_npy(path: str | Path) -> npt.NDArray[Any]:
    """Return the array of a ``.npy`` file, mapped from disk.

    Raises:
        OSError: the file can't be read or is not a regular file.
        ValueError: the file is not a ``.npy`` file, is truncated, or contains Python objects.
    """
    with open_regular(path) as stream:
        # np.load accepts both formats, so a renamed .npz deserves a specific message.
        if stream.read(4) == b"PK\x03\x04":
            raise ValueError(
                "it is an .npz archive of several arrays: save the one array with np.save"
            )
    try:
        # Without the error, an overflowing product of dimensions would look like a small array.
        with np.errstate(over="raise"):
            array: npt.NDArray[Any] = np.lib.format.open_memmap(path, mode="r")
    except OSError:
        raise
    except Exception as error:  # whatever NumPy and Python's parser make of a damaged header
        raise ValueError(
            "expected a whole .npy file of plain numbers, no pickled objects "
            f"({_first_line(error)})"
        ) from error
    return array


def take_rows(array: npt.NDArray[Any], indices: npt.NDArray[np.int64] | slice) -> npt.NDArray[Any]:
    """Return the rows ``array[indices]``.

    Rows of a mapped file are announced to the system first. Otherwise the system also reads its
    read-ahead, up to megabytes, around each row: a file larger than the memory is read much slower.
    """
    # A view has another base, and its offset in the file is not known.
    mapped = array.base if isinstance(array, np.memmap) else None
    if (
        isinstance(mapped, mmap.mmap)
        and isinstance(indices, np.ndarray)
        and array.strides[0] >= mmap.PAGESIZE
    ):
        size, origin = array.strides[0], array.offset % mmap.ALLOCATIONGRANULARITY
        for index in indices:
            start = origin + int(index) * size
            page = start - start % mmap.PAGESIZE
            mapped.madvise(mmap.MADV_WILLNEED, page, start + size - page)
    return np.asarray(array[indices])


def unpack_arrays(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of a ``.npz`` file by name.

    Raises:
        OSError: the file can't be read or is not a regular file.
        ValueError: the file is not a ``.npz`` file, is damaged, or needs more memory than the
            limit.
    """
    arrays = {}
    with open_regular(path) as stream, open_archive(stream) as archive:
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            try:
                with archive.open(member) as content:
                    arrays[name] = np.lib.format.read_array(content, allow_pickle=False)
            except OSError:
                raise
            except Exception as error:  # as above, and damage in the archive
                raise ValueError(
                    f"its array {name!r} can't be read ({_first_line(error)})"
                ) from error
    return arrays


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:200]
