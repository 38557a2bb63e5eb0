"""Files that are whole or not there: write beside, sync, rename; and digests.

Readers and writers of one engine meet in a lock on its directory (``flock`` on the directory itself, so that
no lock file is left behind): an engine and its manifest are renamed together, and never read half old, half new.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from qat_lib.errors import EngineBuildError

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EINVAL, errno.EBADF)


def sha256(path: Path) -> str:
    """Return the SHA-256 digest of a file, as hexadecimal text."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def write_together(contents: Mapping[Path, bytes]) -> None:
    """Write files of one directory so that all of them appear, or none.

    Args:
        contents: bytes by path; they are renamed into place in this order.

    Raises:
        EngineBuildError: the disk is full or the directory can't be written; nothing half-written is left.
    """
    directory = next(iter(contents)).parent
    written: dict[Path, Path] = {}
    with writing(directory):
        directory.mkdir(parents=True, exist_ok=True)
        try:
            for path, data in contents.items():
                written[path] = write_beside(path, data)
            with locked(directory, exclusive=True):
                for path, temporary in written.items():
                    os.replace(temporary, path)
        finally:
            for temporary in written.values():
                temporary.unlink(missing_ok=True)


def write_beside(path: Path, data: bytes) -> Path:
    """Write ``data`` to a new file beside ``path``, synced to disk, and return it for renaming."""
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.chmod(0o666 & ~_umask())
    except BaseException:  # a cancelled build must not leave the file either
        temporary.unlink(missing_ok=True)
        raise
    return temporary


@contextlib.contextmanager
def writing(directory: Path) -> Iterator[None]:
    """Translate what can go wrong while files are written to ``directory``.

    Raises:
        EngineBuildError: the disk or its quota is full, or the directory can't be written.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise EngineBuildError(
                f"Nothing can be written to {directory}: the disk or its quota is full ({error.strerror}). "
                "No half-written file was left behind; free some space and build again."
            ) from error
        raise EngineBuildError(
            f"Nothing can be written to {directory}: {error.strerror or error}. "
            "No half-written file was left behind; choose a directory that can be written."
        ) from error


@contextlib.contextmanager
def locked(directory: Path, *, exclusive: bool) -> Iterator[None]:
    """Hold the lock of ``directory``: one writer or many readers. File systems without locks go unlocked."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
        yield
    finally:
        os.close(descriptor)


def _umask() -> int:
    """Return the process's umask; ``mkstemp`` ignores it and would leave files that only their owner can read."""
    with contextlib.suppress(OSError, StopIteration, ValueError):
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("Umask:")).split()[1], 8)
    return 0o022
