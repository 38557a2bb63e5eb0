"""Files and folders that appear whole or not at all."""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_UNFINISHED = re.compile(r"\..+\.[0-9a-f]{12}\.tmp")


def unfinished_name(name: str) -> str:
    """Return a new temporary name that ``sweep_unfinished`` recognizes.

    ``name`` is the final one.
    """
    return f".{name}.{secrets.token_hex(6)}.tmp"


@contextmanager
def written_beside(target: Path) -> Iterator[Path]:
    """Yield an empty file that becomes ``target`` in one rename.

    The body must succeed for that. Whatever the body raises, a full disk included, the file beside
    is gone afterwards.
    """
    unfinished = target.with_name(unfinished_name(target.name))
    try:
        os.close(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
        yield unfinished
        sync(unfinished)
        unfinished.replace(target)
    finally:
        unfinished.unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> None:
    """Write UTF-8 text atomically.

    Raises:
        OSError: it can't be written; what was there before is still there.
    """
    with written_beside(Path(path)) as unfinished:
        unfinished.write_text(text, encoding="utf-8")


def sync(path: Path) -> None:
    """Wait until a file or a folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sweep_unfinished(folder: Path) -> None:
    """Remove temporary files that killed processes left.

    Nobody may be writing in ``folder``.
    """
    with suppress(OSError):
        for path in folder.iterdir():
            if not _UNFINISHED.fullmatch(path.name):
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
