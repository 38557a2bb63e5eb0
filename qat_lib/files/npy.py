"""Read untrusted ``.npy`` files, the header checked before allocation."""

from __future__ import annotations

import io
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from qat_lib.files.regular_files import open_regular

# NumPy's own limit for the text of a header that it parses.
_LONGEST_HEADER = 10_000
_MAGIC = b"\x93NUMPY"
_READERS = {
    1: (2, np.lib.format.read_array_header_1_0),
    2: (4, np.lib.format.read_array_header_2_0),
}


@dataclass(frozen=True, kw_only=True)
class NpyHeader:
    """Header of a ``.npy`` file: shape, data type and data offset."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int

    @property
    def nbytes(self) -> int:
        """Bytes of the array."""
        return math.prod(self.shape) * self.dtype.itemsize


def read_header(stream: IO[bytes], size: int) -> NpyHeader:
    """Read the header at the start of ``stream`` of ``size`` bytes.

    Raises:
        ValueError: there is none, it names an impossible array, or objects, or more than the file
            holds.
    """
    start = stream.read(8)
    if not start:
        raise ValueError("it is empty")
    if start[:4] == b"PK\x03\x04":
        raise ValueError("it is an .npz archive of several arrays: save the one array with np.save")
    if start[:6] != _MAGIC or len(start) < 8 or start[6] not in _READERS:
        raise ValueError("it is no .npy file, which np.save writes")
    width, parse = _READERS[start[6]]
    length = stream.read(width)
    text_bytes = int.from_bytes(length, "little")
    if text_bytes > _LONGEST_HEADER:
        raise ValueError(
            f"its header has {text_bytes:,} bytes, expected at most {_LONGEST_HEADER:,}"
        )
    text = stream.read(text_bytes)
    try:
        shape, _, dtype = parse(io.BytesIO(length + text))
    except Exception as error:  # whatever Python's parser and NumPy's make of damaged text
        raise ValueError(f"its header is damaged ({_first_line(error)})") from error
    header = NpyHeader(shape=shape, dtype=dtype, offset=8 + width + text_bytes)
    _check(header, size)
    return header


def load_npy(path: str | Path) -> npt.NDArray[Any]:
    """Return the array of a ``.npy`` file, mapped from disk.

    Raises:
        OSError: it can't be read or is no regular file.
        ValueError: as ``read_header``.
    """
    with open_regular(path) as stream:
        header = read_header(stream, os.fstat(stream.fileno()).st_size)
    # NumPy can't map nothing.
    array: npt.NDArray[Any] = np.load(
        path, mmap_mode="r" if header.nbytes else None, allow_pickle=False
    )
    return array


def _check(header: NpyHeader, size: int) -> None:
    if header.dtype.hasobject:
        raise ValueError(
            "its type is object, expected plain numbers, no pickled objects: save it again as an "
            "array of one type"
        )
    if any(isinstance(length, bool) or length < 0 for length in header.shape):
        raise ValueError(f"its header names the shape {header.shape}, expected no negative sizes")
    if len(header.shape) > 32 or (header.dtype.itemsize == 0 and 0 not in header.shape):
        raise ValueError("its header names an array that can't be")
    if header.offset + header.nbytes > size:
        raise ValueError(
            f"it is cut short: its header names {header.nbytes:,} bytes of {header.dtype} "
            f"{header.shape}, "
            f"received {max(0, size - header.offset):,}"
        )


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:200]
