"""Write files and folders atomically: under a temporary name in the same folder, then rename.

A temporary name contains its process. ``folder_beside`` removes what killed processes left behind.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import secrets
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_UNFINISHED = re.compile(r"\..+-(?P<machine>[0-9a-f]{8})-(?P<process>\d+)-[0-9a-f]{12}\.tmp")


def unfinished_name(name: str) -> str:
    """Return a new temporary name for the final ``name``, as ``sweep_unfinished`` expects it."""
    # Names of files are limited to 255 bytes.
    return f".{name[:40]}-{_machine()}-{os.getpid()}-{secrets.token_hex(6)}.tmp"


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


@contextmanager
def folder_beside(target: Path) -> Iterator[Path]:
    """Yield an empty temporary folder next to ``target``; delete it at the end unless renamed."""
    target.parent.mkdir(parents=True, exist_ok=True)
    sweep_unfinished(target.parent)
    folder = target.with_name(unfinished_name(target.name))
    try:
        folder.mkdir()
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def place_files(folder: Path, target: Path) -> None:
    """Move the files of a temporary folder next to ``target``, replacing older files.

    ``target`` itself is the last one: it never refers to a missing file.
    """
    sync_tree(folder)
    for path in sorted(folder.iterdir(), key=lambda path: path.name == target.name):
        path.replace(target.with_name(path.name))


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


def sync_tree(folder: Path) -> None:
    """Wait until a folder and everything below it are on the disk."""
    for root, _, names in os.walk(folder):
        for name in names:
            sync(Path(root, name))
        sync(Path(root))


def sweep_unfinished(folder: Path, *, alone: bool = False) -> None:
    """Remove the temporary files and folders of killed processes of this machine.

    Args:
        folder: the folder to clean.
        alone: whether no other process writes to ``folder``, so that everything unfinished in it
            can go.
    """
    with suppress(OSError):
        for path in folder.iterdir():
            found = _UNFINISHED.fullmatch(path.name)
            if found is None or not (alone or _has_ended(found["machine"], int(found["process"]))):
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


@functools.cache
def _machine() -> str:
    """Return a digest of the machine and of its container, in which process ids are valid."""
    namespace = ""
    with suppress(OSError):
        namespace = os.readlink("/proc/self/ns/pid")
    return hashlib.sha256(f"{socket.gethostname()} {namespace}".encode()).hexdigest()[:8]


def _has_ended(machine: str, process: int) -> bool:
    if machine != _machine():
        return False
    try:
        os.kill(process, 0)
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except ProcessLookupError:
        return True
    except OSError:  # of another user, ended meanwhile, or not Linux
        return False
    # A killed process takes signals until its parent has read its exit code.
    return state in "ZX"
