"""Check Keras files by their headers before Keras reads them.

Keras itself rejects code (safe mode) and links to other files.
"""

from __future__ import annotations

import io
import math
import os
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

from qat_lib.files.archives import check_unpacked, open_archive
from qat_lib.files.regular_files import open_regular
from qat_lib.files.text_files import JSON_BYTES

_CONFIG = "config.json"
_HDF5, _NPZ = "model.weights.h5", "model.weights.npz"


def check_keras_archive(path: Path) -> None:
    """Check the unpacked size of a ``.keras`` file, weights included.

    Raises:
        OSError: the file can't be read or is not a regular file.
        ValueError: the file is not a ``.keras`` file, is damaged, or unpacks to more than the
            limit.
    """
    with open_regular(path) as stream, open_archive(stream) as archive:
        names = archive.namelist()
        if _CONFIG not in names or not {_HDF5, _NPZ} & set(names):
            raise ValueError(f"it holds no {_CONFIG} or no {_HDF5}, as a .keras file does")
        if archive.getinfo(_CONFIG).file_size > JSON_BYTES:
            raise ValueError(f"its {_CONFIG} has more than {JSON_BYTES:,} bytes")
        if _HDF5 in names:
            try:
                weights = archive.read(_HDF5)
            except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError) as error:
                raise ValueError(f"its member {_HDF5} is damaged ({error})") from error
            # HDF5 also compresses its datasets inside of the member: check the size again.
            check_unpacked(stored_bytes(io.BytesIO(weights)), os.fstat(stream.fileno()).st_size)


def stored_bytes(source: Path | BinaryIO) -> int:
    """Return the size of an HDF5 file's datasets in memory, in bytes.

    Raises:
        ValueError: the file is damaged, or a dataset refers to another file.
    """
    import h5py

    total = 0

    def add(name: str, item: Any) -> None:
        nonlocal total
        if not isinstance(item, h5py.Dataset):
            return
        if item.is_virtual or item.external:
            raise ValueError(f"its weights {name} lie in another file")
        # A chunk is unpacked whole, and may be larger than a dataset that can grow.
        elements = max(int(item.size or 0), math.prod(item.chunks or (0,)))
        total += int(item.dtype.itemsize) * elements

    try:
        # h5py raises all these types for damaged headers, depending on the damaged field.
        with h5py.File(source, "r") as file:
            file.visititems(add)
    except (OSError, RuntimeError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"its weights are damaged ({error})") from error
    return total
