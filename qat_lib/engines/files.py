"""Atomic file writes (draft, sync, rename) and digests.

Readers and writers of an engine lock its directory (``flock`` on the directory itself, without a
lock file). Readers therefore see either the old or the new pair of engine and manifest.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path

from qat_lib.errors import EngineBuildError
from qat_lib.support.digests import sha256_of

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NO_NAMELESS = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT)
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EINVAL, errno.EBADF)


def sha256(path: Path) -> str:
    """Return the SHA-256 digest of a file, as hexadecimal text."""
    with path.open("rb") as stream:
        return sha256_of(stream)


def write_together(contents: Mapping[Path, bytes]) -> None:
    """Write files of one directory, all or none.

    Args:
        contents: bytes by path, in the order of the renames.

    Raises:
        EngineBuildError: the disk is full or the directory can't be written; no partial file
            remains.
    """
    with together(next(iter(contents)).parent) as drafts:
        for path, data in contents.items():
            drafts.add(path, data)


class Drafts:
    """Unnamed new files of one directory."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        self._waiting: list[tuple[Path, Draft]] = []

    def add(self, path: Path, data: bytes) -> Draft:
        """Write ``data`` to a draft for ``path``; raise EngineBuildError if the disk is full."""
        with writing(path.parent):
            written = self._stack.enter_context(draft(path, data))
        self._waiting.append((path, written))
        return written

    def place(self) -> None:
        """Rename all files into place, in the order of their addition."""
        for path, written in self._waiting:
            written.place(path)


@contextlib.contextmanager
def together(directory: Path) -> Iterator[Drafts]:
    """Write several files of ``directory`` atomically.

    Raises:
        EngineBuildError: the disk is full or the directory can't be written; no partial file
            remains.
    """
    # The stack deletes all drafts without a name, after success as well as after errors.
    with contextlib.ExitStack() as stack:
        with writing(directory):
            directory.mkdir(parents=True, exist_ok=True)
        drafts = Drafts(stack)
        yield drafts
        # The lock covers the renames only, not the build.
        with writing(directory), locked(directory, exclusive=True):
            drafts.place()


class Draft:
    """A written and synced file without its final name."""

    def __init__(self, descriptor: int, temporary: Path, *, nameless: bool) -> None:
        self._descriptor, self._temporary, self._nameless = descriptor, temporary, nameless

    def read(self) -> bytes:
        """Read the file again."""
        with open(self._descriptor, "rb", closefd=False) as stream:
            stream.seek(0)
            return stream.read()

    def place(self, target: Path) -> None:
        """Give the file its name, replacing an existing file."""
        # linkat(2) can't replace a file, hence the link to a temporary name first. Passing
        # src_dir_fd makes Python follow the /proc link to the file.
        if self._nameless:
            os.link(
                f"/proc/self/fd/{self._descriptor}", self._temporary, src_dir_fd=self._descriptor
            )
        os.replace(self._temporary, target)


@contextlib.contextmanager
def draft(path: Path, data: bytes) -> Iterator[Draft]:
    """Write ``data`` to a synced draft for ``path``, deleted at the end unless placed.

    If the file system supports it, the draft has no name, so that even a killed process leaves no
    file behind.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    descriptor = _open_nameless(path.parent)
    nameless = descriptor is not None
    if descriptor is None:
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with open(descriptor, "wb", closefd=False) as stream:
            stream.write(data)
            stream.flush()
            os.fsync(descriptor)
        yield Draft(descriptor, temporary, nameless=nameless)
    finally:  # a cancelled build must not leave the file either
        os.close(descriptor)
        temporary.unlink(missing_ok=True)


def _open_nameless(directory: Path) -> int | None:
    """Open a new unnamed file in ``directory``; None if the system does not support it."""
    if not hasattr(os, "O_TMPFILE") or not Path("/proc/self/fd").is_dir():
        return None
    try:
        return os.open(directory, os.O_TMPFILE | os.O_RDWR, 0o666)
    except OSError as error:
        if error.errno not in _NO_NAMELESS:
            raise
        return None


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


@contextlib.contextmanager
def locked(directory: Path, *, exclusive: bool) -> Iterator[None]:
    """Lock ``directory`` for one writer or many readers, if its file system supports locks."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
        yield
    finally:
        os.close(descriptor)
