"""Lock per result: one process computes it, others wait.

The operating system releases the lock when its owner exits, even if killed, so that no stale lock
blocks other processes.
"""

from __future__ import annotations

import fcntl
import logging
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from qatline.components.support.disk_errors import as_storage_error

RUN_VARIABLE = "QATLINE_RUN"
_PAUSE = 0.2  # seconds
_LONGEST_NAME = 500  # bytes

_log = logging.getLogger(__name__)


def this_process() -> str:
    """Return the name of this process: its run, if any, and its id."""
    process = f"process {os.getpid()} on {socket.gethostname()}"
    run = os.environ.get(RUN_VARIABLE)
    return f"run {run} ({process})" if run else process


@contextmanager
def held(path: Path, waiting: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock file ``path``; delete it on release.

    Args:
        path: the lock file; its folder is created.
        waiting: receives the owner's name at each change, and "" at the end of the wait. Not called
            if the lock is free.

    Raises:
        StorageError: the disk is full or the folder is not writable.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = _acquire(path, waiting)
    except OSError as error:
        raise as_storage_error(error, path) from error
    try:
        yield
    finally:
        # Delete before the release: a waiting process detects it with ``_is_still_at``.
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _acquire(path: Path, waiting: Callable[[str], None]) -> int:
    told = ""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            if _lock(descriptor):
                # Its last holder may have removed it between the two calls: then it keeps nobody
                # out.
                if _is_still_at(descriptor, path):
                    os.ftruncate(descriptor, 0)
                    os.pwrite(descriptor, this_process().encode()[:_LONGEST_NAME], 0)
                    if told:
                        waiting("")
                    return descriptor
            else:
                holder = os.pread(descriptor, _LONGEST_NAME, 0).decode(errors="replace")
                if holder and holder != told:
                    waiting(holder)
                    told = holder
                time.sleep(_PAUSE)
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _lock(descriptor: int) -> bool:
    """Try to lock a file; succeed if the file system does not support locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        # Without locks a result may be computed twice: slower, but correct.
        _log.warning("this file system has no locks: %s", error)
    return True


def _is_still_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
