"""Files of an engine, replaced together."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterator
from pathlib import Path

from qat_lib.errors import EngineBuildError
from qat_lib.files.whole_files import folder_beside, place_files, sync_tree
from qat_lib.support.locks import file_lock

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextlib.contextmanager
def together(target: Path) -> Iterator[Callable[[Path, bytes], Path]]:
    """Yield a function that writes a draft of a file next to ``target`` and returns its path.

    If the body succeeds, all files are moved into place, ``target`` last.

    Raises:
        EngineBuildError: the disk is full or the directory can't be written; no partial file
            remains.
    """
    with contextlib.ExitStack() as stack:
        with writing(target.parent):
            drafts = stack.enter_context(folder_beside(target))

        def write(path: Path, data: bytes) -> Path:
            with writing(target.parent):
                (drafts / path.name).write_bytes(data)
            return drafts / path.name

        yield write
        with writing(target.parent):
            # The lock covers the renames only, not the build.
            sync_tree(drafts)
            with locked(target):
                place_files(drafts, target)


def locked(path: Path) -> contextlib.AbstractContextManager[object]:
    """Lock a file, or the files that are replaced together with it, against other writers."""
    return file_lock(path.with_name(f".{path.name}.lock"))


@contextlib.contextmanager
def writing(directory: Path) -> Iterator[None]:
    """Translate errors of writing files to ``directory``.

    Raises:
        EngineBuildError: the disk or its quota is full, or the directory can't be written.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise EngineBuildError(
                f"Nothing can be written to {directory}: the disk or its quota is full "
                f"({error.strerror}). No half-written file was left behind; free some space and "
                "build again."
            ) from error
        raise EngineBuildError(
            f"Nothing can be written to {directory}: {error.strerror or error}. "
            "No half-written file was left behind; choose a directory that can be written."
        ) from error
