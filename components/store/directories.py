"""Publication of step directories: write to a temporary name, fsync, rename.

A directory is finished only if its manifest verifies.

Readers may open a directory at any time, even while its writer is killed. A directory therefore
counts as finished only if its ``manifest.json`` exists and matches the files. The manifest is
written last, and a single rename then gives the directory its final name.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from contextlib import suppress
from pathlib import Path

from qat_lib.errors import StorageError
from qat_lib.files.whole_files import folder_beside, sync, sync_tree
from qatline.components.store.manifest import (
    MANIFEST_NAME,
    FileEntry,
    Manifest,
    describe,
    read_step_manifest,
    verify_directory,
)
from qatline.components.support.disk_errors import as_storage_error

__all__ = [
    "MANIFEST_NAME",
    "FileEntry",
    "Manifest",
    "describe",
    "materialize",
    "publish",
    "read_step_manifest",
    "verify_directory",
]


def publish(tmp: Path, final: Path, manifest: Manifest) -> bool:
    """Give the complete directory ``tmp`` its final name, atomically and durably.

    Returns:
        True if ``final`` is the former ``tmp``. False if another process already published a
        finished directory there; ``tmp`` is then removed.

    Raises:
        StorageError: the disk is full, or ``final`` exists and is not a finished directory.
    """
    try:
        text = json.dumps(manifest.to_dict(), indent=1, allow_nan=False)
        (tmp / MANIFEST_NAME).write_text(text + "\n", encoding="utf-8")
        # Contents must be durable before the name: a crash could otherwise publish empty files.
        sync_tree(tmp)
        final.parent.mkdir(parents=True, exist_ok=True)
        if not _rename(tmp, final):
            shutil.rmtree(tmp, ignore_errors=True)
            return False
        # Makes the rename itself durable.
        sync(final.parent)
    except OSError as error:
        shutil.rmtree(tmp, ignore_errors=True)
        raise as_storage_error(error, final) from error
    return True


def materialize(source: Path, target: Path) -> None:
    """Make ``target`` a copy of the published directory ``source``.

    Files are hard-linked if the file system supports it. A missing or empty ``target`` is created,
    an older copy is replaced. It appears in a single rename.

    Raises:
        StorageError: the disk is full or the folder is not writable.
    """
    try:
        with folder_beside(target) as beside:
            shutil.copytree(source, beside, copy_function=_link_or_copy, dirs_exist_ok=True)
            # A rename cannot replace a directory with content.
            if target.exists():
                shutil.rmtree(target)
            beside.rename(target)
    except (OSError, shutil.Error) as error:
        raise as_storage_error(error, target) from error


def _rename(tmp: Path, final: Path) -> bool:
    """Rename ``tmp``; return False if a finished directory already exists.

    An empty or unfinished directory is replaced.
    """
    for _ in range(3):
        try:
            tmp.rename(final)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
        else:
            return True
        try:
            verify_directory(final)
        except StorageError:
            # Left by a tool that writes in place or damaged later: move it away in one step, then
            # try again.
            with folder_beside(final) as aside, suppress(FileNotFoundError):
                final.rename(aside)
        else:
            return False
    raise StorageError(f"{final} can't be published: another process keeps changing it")


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EACCES):
            raise
        shutil.copy2(source, target)
