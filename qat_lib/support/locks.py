"""Locks between processes.

The operating system releases a lock when its owner exits, even if killed, so that no stale lock
blocks other processes.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PAUSE = 0.1  # seconds between two attempts
_LONGEST_NAME = 500  # bytes
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)

_log = logging.getLogger(__name__)


class LockTimeoutError(Exception):
    """Another process holds a lock; ``holder`` is its name, if known."""

    def __init__(self, holder: str) -> None:
        super().__init__(f"another process holds the lock: {holder or 'unknown'}")
        self.holder = holder


@contextmanager
def file_lock(
    path: Path,
    *,
    owner: str = "",
    patience: float = -1,
    waiting: Callable[[str], None] | None = None,
) -> Iterator[tuple[int, ...]]:
    """Hold the lock file ``path``; delete it on release.

    Without locks in the file system, the body runs at once, with a logged warning.

    Args:
        path: the lock file; its folder is created.
        owner: name of this process, for others that wait.
        patience: maximum seconds to wait; negative for no limit.
        waiting: receives the owner's name at each change, and "" at the end of the wait. Not called
            if the lock is free.

    Yields:
        The descriptor of the lock file, to pass on to a child process, which then holds the lock
        even if this process is killed; none without locks.

    Raises:
        LockTimeoutError: another process holds the lock.
        OSError: the lock file can't be written.
    """
    # Imported here: it takes a tenth of a second.
    from filelock import FileLock, Timeout

    told = ""

    def tell() -> bool:
        nonlocal told
        if waiting and (holder := _holder(path)) and holder != told:
            waiting(holder)
            told = holder
        return False

    acquired: list[int] = []
    lock = FileLock(path, poll_interval=_PAUSE, on_acquired=acquired.append)
    try:
        lock.acquire(timeout=patience, cancel_check=tell)
        # The last holder may have removed the file before this process got its lock.
        while not _is_at(path, acquired[-1]):
            lock.release()
            lock.acquire(timeout=patience, cancel_check=tell)
    except Timeout as error:
        raise LockTimeoutError(_holder(path)) from error
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        _log.warning("this file system has no locks: %s", error)
    try:
        if lock.is_locked:
            os.ftruncate(acquired[-1], 0)
            os.pwrite(acquired[-1], owner.encode()[:_LONGEST_NAME], 0)
        if waiting and told:
            waiting("")
        yield tuple(acquired[-1:])
    finally:
        # Before the release, after which the file may be another process's.
        path.unlink(missing_ok=True)
        lock.release()


def _holder(path: Path) -> str:
    with suppress(OSError):
        return path.read_bytes()[:_LONGEST_NAME].decode(errors="replace")
    return ""


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
