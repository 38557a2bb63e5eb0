"""Reader of ``.npz`` files of images and labels, memory-mapped."""

from __future__ import annotations

import shutil
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from qat_lib.errors import DataError, QatlineError
from qat_lib.files.archives import open_archive
from qat_lib.files.npy import load_npy
from qat_lib.files.regular_files import open_regular
from qatline.components.data.array_checks import Array, Part, check_part, check_together
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
"""Names of the images and labels of each part, in order of priority."""

_MEMBERS = frozenset(f"{name}.npy" for names in PAIRS.values() for pair in names for name in pair)


def read_npz(path: Path, scratch: Path, settings: DataSettings) -> ArraySource:
    """Unpack a ``.npz`` file's arrays into ``scratch`` as memory maps.

    Recognized names: ``x_train``/``y_train`` (or ``train_images``/``train_labels``, ``x``/``y``,
    ``images``/``labels``), and optionally ``x_val``/``y_val`` and ``x_test``/``y_test``.

    Raises:
        DataError: the file is missing, truncated, pickled, exceeds the limit on its unpacked size
            (``QATLINE_MAX_UNPACKED``; by default 256 MiB or 16 times its size), or has another
            content.
    """
    arrays = unpack_npz(path, scratch)
    found = {}
    for part, names in PAIRS.items():
        if (pair := find_pair(part, names, arrays, path)) is not None:
            found[part] = pair
    if "train" not in found:
        raise DataError(
            f"{path}: expected arrays named x_train and y_train (optionally x_val, y_val, x_test, "
            "y_test), x and y, or images and labels; received "
            f"{', '.join(sorted(arrays)) or 'none'}"
        )
    parts: dict[str, Part] = {
        part: check_part(part, arrays[x], arrays[y]) for part, (x, y) in found.items()
    }
    return ArraySource(
        parts=parts,
        classes=check_together(parts, settings.classes),
        description=str(path),
        size=settings.image_size,
    )


def unpack_npz(path: Path, scratch: Path) -> dict[str, Array]:
    """Unpack a ``.npz`` file's arrays of known names as memory maps.

    Without known names, the existing names are returned with empty arrays.

    Raises:
        DataError: as in ``read_npz``.
    """
    try:
        with open_regular(path) as stream, open_archive(stream, _MEMBERS) as archive:
            return _open_arrays(archive, path, scratch)
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


def find_pair(
    part: str, names: Sequence[tuple[str, str]], arrays: Mapping[str, Array], path: Path
) -> tuple[str, str] | None:
    """Return the first existing pair of image and label names, or None.

    Raises:
        DataError: only one of the two exists.
    """
    for x, y in names:
        if (x in arrays) != (y in arrays):
            have, lack = (x, y) if x in arrays else (y, x)
            raise DataError(f"{path}: the {part} part has {have} but no {lack}")
        if x in arrays:
            return x, y
    return None


def _open_arrays(archive: zipfile.ZipFile, path: Path, scratch: Path) -> dict[str, Array]:
    present = {name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")}
    wanted = sorted(name for name in present if f"{name}.npy" in _MEMBERS)
    if not wanted:
        return {name: np.empty(0) for name in present}
    arrays: dict[str, Array] = {}
    for name in wanted:
        target = scratch / f"{name}.npy"
        # Copy the whole member: zipfile verifies the checksum at its end only.
        with archive.open(f"{name}.npy") as source, target.open("wb") as copy:
            shutil.copyfileobj(source, copy, 1 << 20)
        try:
            arrays[name] = load_npy(target)
        except ValueError as error:
            raise DataError(f"{path}: the array {name} can't be read: {error}.") from error
    return arrays
