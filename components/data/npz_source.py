"""Reader of ``.npz`` files of inputs and targets, memory-mapped."""

from __future__ import annotations

import io
import math
import shutil
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

import numpy as np

from qat_lib.errors import DataError, QatlineError
from qat_lib.files.archives import open_archive
from qat_lib.files.npy import load_npy
from qat_lib.files.regular_files import open_regular
from qatline.components.data.array_checks import (
    CHUNK_BYTES,
    INPUT_NAME,
    Array,
    Part,
    check_part,
    check_together,
)
from qatline.components.data.array_source import ArraySource
from qatline.components.settings import DataSettings
from qatline.components.support.disk_errors import as_storage_error, is_disk_full

PAIRS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "train": (
        ("x_train", "y_train"),
        ("train_images", "train_labels"),
        ("x", "y"),
        ("images", "labels"),
    ),
    "validation": (
        ("x_val", "y_val"),
        ("x_validation", "y_validation"),
        ("val_images", "val_labels"),
    ),
    "test": (("x_test", "y_test"), ("test_images", "test_labels")),
}
"""Names of the inputs and targets of each part, in order of priority."""

_TARGETS = frozenset(f"{target}.npy" for names in PAIRS.values() for _, target in names)
_NAMES = frozenset(name for names in PAIRS.values() for pair in names for name in pair)
# Prefixes of the names of several inputs: ``x_train_<input>``.
_SEVERAL = tuple(f"{pair[0]}_" for names in PAIRS.values() for pair in names if pair[0] != "x")


def read_npz(
    path: Path, scratch: Path, settings: DataSettings, head: int | None = None
) -> ArraySource:
    """Unpack a ``.npz`` file's arrays into ``scratch`` as memory maps.

    Recognized names: ``x_train``/``y_train`` (or ``train_images``/``train_labels``, ``x``/``y``,
    ``images``/``labels``), and optionally ``x_val``/``y_val`` and ``x_test``/``y_test``. Several
    inputs are named ``x_train_<input>``, and so on, with the names of the model's inputs.

    Args:
        path: the file.
        scratch: folder for the arrays.
        settings: class names and image size.
        head: number of samples of each array to read, the others are zeros; None for all.

    Raises:
        DataError: the file is missing, truncated, pickled, exceeds the limit on its unpacked size
            (``QATLINE_MAX_UNPACKED``; by default 256 MiB or 16 times its size), or has another
            content.
    """
    arrays = unpack_npz(path, scratch, head)
    parts: dict[str, Part] = {}
    for part, names in PAIRS.items():
        if (found := find_part(part, names, arrays, path)) is not None:
            parts[part] = check_part(part, *found)
    if "train" not in parts:
        raise DataError(
            f"{path}: expected arrays named x_train and y_train (optionally x_val, y_val, x_test, "
            "y_test), x and y, or images and labels; received "
            f"{', '.join(sorted(arrays)) or 'none'}"
        )
    check_together(parts)
    return ArraySource(
        parts=parts,
        classes=tuple(settings.classes or ()),
        description=str(path),
        size=settings.image_size,
    )


def holds_pairs(path: Path) -> bool:
    """Return whether a ``.npz`` file has targets of known names, or can't be read."""
    if not path.is_file():
        return True
    try:
        with zipfile.ZipFile(path) as archive:
            return not _TARGETS.isdisjoint(archive.namelist())
    except (OSError, zipfile.BadZipFile):
        return True


def unpack_npz(path: Path, scratch: Path, head: int | None = None) -> dict[str, Array]:
    """Unpack a ``.npz`` file's arrays of known names as memory maps.

    Without known names, the existing names are returned with empty arrays.

    Raises:
        DataError: as in ``read_npz``.
    """
    try:
        with open_regular(path) as stream, open_archive(stream, _is_known) as archive:
            return _open_arrays(archive, path, scratch, head)
    except QatlineError:
        raise
    except FileNotFoundError as error:
        raise DataError(
            f"the data file {path} is missing: correct data.path (received {str(path)!r})"
        ) from error
    # RuntimeError: the archive is encrypted. NotImplementedError: an unknown compression.
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError) as error:
        raise DataError(
            f"{path} is truncated or no .npz file: {error}. Copy or make it again."
        ) from error
    except ValueError as error:
        raise DataError(f"{path} can't be used: expected an .npz file, but {error}.") from error
    except OSError as error:
        if is_disk_full(error):
            raise as_storage_error(error, scratch) from error
        raise DataError(f"{path} can't be read: {error.strerror or error}") from error


def find_part(
    part: str, names: Sequence[tuple[str, str]], arrays: Mapping[str, Array], path: Path
) -> tuple[Array | dict[str, Array], Array] | None:
    """Return the inputs and targets of the first existing pair of names, or None.

    Several inputs are returned by name.

    Raises:
        DataError: only one of the two exists.
    """
    for x, y in names:
        several = {} if x in arrays else _named(x, arrays)
        present = x if x in arrays else next((f"{x}_{name}" for name in several), None)
        if present is not None and y in arrays:
            return several or arrays[x], arrays[y]
        if present is not None or y in arrays:
            have, lack = (present, y) if present is not None else (y, x)
            raise DataError(f"{path}: the {part} part has {have} but no {lack}")
    return None


def _named(x: str, arrays: Mapping[str, Array]) -> dict[str, Array]:
    prefix = f"{x}_"
    if prefix not in _SEVERAL:
        return {}
    return {
        name.removeprefix(prefix): array
        for name, array in sorted(arrays.items())
        if name.startswith(prefix) and name not in _NAMES
    }


def _is_known(member: str) -> bool:
    name = member.removesuffix(".npy")
    # Members become files: their names must not lead elsewhere.
    is_input = name.startswith(_SEVERAL) and INPUT_NAME.fullmatch(name) is not None
    return name != member and (name in _NAMES or is_input)


def _open_arrays(
    archive: zipfile.ZipFile, path: Path, scratch: Path, head: int | None
) -> dict[str, Array]:
    present = {name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")}
    wanted = sorted(name for name in present if _is_known(f"{name}.npy"))
    if not wanted:
        return {name: np.empty(0) for name in present}
    arrays: dict[str, Array] = {}
    for name in wanted:
        target = scratch / f"{name}.npy"
        # Copy the whole member: zipfile verifies the checksum at its end only.
        with archive.open(f"{name}.npy") as source, target.open("wb") as copy:
            if head is None or archive.getinfo(f"{name}.npy").file_size <= CHUNK_BYTES:
                shutil.copyfileobj(source, copy, 1 << 20)
            else:
                _copy_head(source, copy, head, archive.getinfo(f"{name}.npy").file_size)
        try:
            arrays[name] = load_npy(target)
        except ValueError as error:
            raise DataError(f"{path}: the array {name} can't be read: {error}.") from error
    return arrays


def _copy_head(source: IO[bytes], copy: IO[bytes], samples: int, size: int) -> None:
    """Copy the first samples of an array of ``size`` bytes; the others become zeros.

    Raises:
        ValueError: it is no array.
    """
    start = source.read(1 << 16)
    header = io.BytesIO(start)
    major, _ = np.lib.format.read_magic(header)
    read = (
        np.lib.format.read_array_header_1_0 if major == 1 else np.lib.format.read_array_header_2_0
    )
    shape, _, dtype = read(header)
    copy.write(start)
    left = header.tell() + samples * math.prod(shape[1:]) * dtype.itemsize - len(start)
    while left > 0 and (block := source.read(min(left, 1 << 20))):
        copy.write(block)
        left -= len(block)
    copy.truncate(size)  # a hole, which takes no space
