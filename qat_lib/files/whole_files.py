"""Write files and folders atomically."""

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
    """Return a new temporary name for the final ``name``, as ``sweep_unfinished`` expects it."""
    return f".{name}.{secrets.token_hex(6)}.tmp"


@contextmanager
def written_beside(target: Path) -> Iterator[Path]:
    """Yield an empty temporary file and rename it to ``target`` if the body succeeds.

    If the body raises (a full disk, for example), the temporary file is deleted.
    """
    unfinished = target.with_name(unfinished_name(target.name))
    try:
        # O_EXCL follows no planted link; mode 0666 lets the umask decide, unlike tempfile's 0600.
        os.close(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
        yield unfinished
        # Before the rename: otherwise a power failure can leave the final name on an empty file.
        sync(unfinished)
        unfinished.replace(target)
    finally:
        unfinished.unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> None:
    """Write UTF-8 text atomically.

    Raises:
        OSError: the file can't be written; the previous content is unchanged.
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
    """Remove the temporary files of killed processes.

    No process may write to ``folder`` at the same time.
    """
    with suppress(OSError):
        for path in folder.iterdir():
            if not _UNFINISHED.fullmatch(path.name):
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
