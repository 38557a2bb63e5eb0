"""Messages for file system errors, such as a full disk."""

from __future__ import annotations

import errno
import shutil
from contextlib import suppress
from pathlib import Path

from qat_lib.errors import StorageError

AFTER_FULL = (
    "Free some space, or choose another place for the runs; finished steps are kept, so "
    "qatline resume continues from there."
)
# HDF5, TensorFlow, ONNX and SQLite report a full disk in their own exceptions, as text only.
_TEXTS = (
    "No space left on device",
    "File too large",
    "database or disk is full",
    "Disk quota exceeded",
)


def as_storage_error(error: BaseException, place: Path) -> StorageError:
    """Translate a file system error; full disks have a separate message."""
    if isinstance(error, StorageError):
        return error
    if not is_disk_full(error):
        return StorageError(
            f"{place} can't be written: {error}. Correct that, or choose another place."
        )
    free = ""
    with suppress(OSError):
        usage = shutil.disk_usage(
            next(parent for parent in (place, *place.parents) if parent.exists())
        )
        free = f" ({usage.free / 2**20:.0f} MiB free of {usage.total / 2**20:.0f})"
    return StorageError(f"the disk is full: {place} can't be written{free}. {AFTER_FULL}")


def is_disk_full(error: BaseException) -> bool:
    """Return whether ``error`` or one of its causes reports a full disk."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        if isinstance(current, OSError) and current.errno in (
            errno.ENOSPC,
            errno.EDQUOT,
            errno.EFBIG,
        ):
            return True
        if any(text in str(current) for text in _TEXTS):
            return True
        current = current.__cause__ or current.__context__
    return False
