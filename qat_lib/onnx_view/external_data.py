"""External weights of an ONNX file: allowed locations and completeness."""

from __future__ import annotations

import stat
from collections.abc import Iterable
from math import prod
from pathlib import Path

import onnx

from qat_lib.errors import ExportError

#: Element types of less than a byte; their length depends on packing.
_PACKED_TYPES = frozenset({"INT4", "UINT4", "FLOAT4E2M1", "INT2", "UINT2", "STRING", "UNDEFINED"})

_SHOWN = 200  # characters of a name in a message


def check_external_data(path: Path, tensors: Iterable[onnx.TensorProto]) -> None:
    """Check the external data of ``tensors`` without reading it.

    Args:
        path: the ONNX file; its data files are in the same folder or below.
        tensors: tensors of the model, including those with internal data.

    Raises:
        ExportError: a data file is missing, is outside of the folder (also by a link), is not a
            regular file, or is shorter than the data of a tensor.
    """
    folder = path.parent.resolve()
    sizes: dict[str, int] = {}
    for tensor in tensors:
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        entries = {entry.key: entry.value for entry in tensor.external_data}
        location = entries.get("location", "")
        # Thousands of tensors may share one data file: it is examined once.
        if location not in sizes:
            sizes[location] = _size(path, folder, tensor.name, location)
        _check_range(path, tensor, entries, sizes[location])


def _size(path: Path, folder: Path, name: str, location: str) -> int:
    problem = f"which is not a file inside {folder}"
    # An empty or absolute path, one with "..", or a link could lead a reader to any file of the
    # machine.
    if location and "\x00" not in location and _is_below(folder / location, folder):
        try:
            found = (folder / location).stat()
        except (FileNotFoundError, NotADirectoryError):
            problem = "which does not exist"
        except OSError as error:  # a name that is too long, for example
            problem = f"which can't be opened ({error.strerror})"
        else:
            if stat.S_ISREG(found.st_mode):
                return found.st_size
    raise ExportError(
        f"Expected the external data of {path} next to it. Tensor {name!r} lies in "
        f"{location[:_SHOWN]!r}, {problem}. Copy the data file together with the model."
    )


def _is_below(file: Path, folder: Path) -> bool:
    try:
        return file.resolve().is_relative_to(folder)
    except (OSError, RuntimeError):  # a circle of links
        return False


def _check_range(
    path: Path, tensor: onnx.TensorProto, entries: dict[str, str], available: int
) -> None:
    needed = _bytes(tensor)
    length = needed or 0
    try:
        # Entries are text of an untrusted file and may contain anything.
        offset = int(entries.get("offset") or 0)
        length = int(entries.get("length") or length)
    except ValueError:
        fits = False
    else:
        fits = offset >= 0 and length >= 0 and offset + length <= available
    if fits and (needed is None or length >= needed):
        return
    raise ExportError(
        f"Expected the external data of {path} to be whole. Tensor {tensor.name!r} needs "
        f"{needed or length:,} bytes from byte {entries.get('offset', '0')[:20]} on; "
        f"{entries.get('location')!r} has {available:,} and can't be read as such: it is too "
        "short. Copy the data file together with the model."
    )


def _bytes(tensor: onnx.TensorProto) -> int | None:
    """Return a tensor's size in bytes, or None if unknown."""
    try:
        name = onnx.TensorProto.DataType.Name(tensor.data_type)
        if name in _PACKED_TYPES or min(tensor.dims, default=0) < 0:
            return None
        size = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    except (ValueError, KeyError):
        return None
    count: int = prod(tensor.dims)
    return count * int(size)
