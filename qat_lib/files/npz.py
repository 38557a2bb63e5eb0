"""Read a ``.npz`` file of arrays whose sizes are checked before they are read."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np

from qat_lib.files.archives import open_archive
from qat_lib.files.npy import read_header
from qat_lib.files.regular_files import open_regular


def unpack_arrays(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of a ``.npz`` file by name.

    Raises:
        OSError: it can't be read or is no regular file.
        ValueError: it is no such file, is damaged, or asks for more memory than is allowed.
    """
    with open_regular(path) as stream, open_archive(stream) as archive:
        read_npz_headers(archive)
        stream.seek(0)
        with np.load(stream, allow_pickle=False) as arrays:
            return {key: arrays[key] for key in arrays.files}


def read_npz_headers(archive: zipfile.ZipFile) -> int:
    """Return how many bytes the arrays of a ``.npz`` file take.

    Raises:
        ValueError: the header of one is wrong; the text names it.
    """
    total = 0
    for member in archive.infolist():
        with archive.open(member) as stream:
            try:
                total += read_header(stream, member.file_size).nbytes
            except ValueError as error:
                raise ValueError(
                    f"in its array {member.filename.removesuffix('.npy')!r} {error}"
                ) from error
    return total
