"""Read untrusted regular files up to a limit.

Reading a pipe or a link to ``/dev/zero`` would never end. Unreadable files raise an OSError with
the reason; the caller translates it.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def describe_kind(mode: int) -> str:
    """Return the kind of an irregular file, such as ``a folder``, from its ``st_mode``."""
    return next((name for is_kind, name in _KINDS if is_kind(mode)), "something else")


def open_regular(path: str | Path) -> BinaryIO:
    """Open a file for reading, without waiting for a pipe's other end.

    Raises:
        OSError: the file can't be opened or is not regular; ``strerror`` names its kind.
    """
    return os.fdopen(_open(path)[0], "rb")


def read_regular(path: str | Path, limit: int) -> bytes:
    """Return the content of a regular file of at most ``limit`` bytes.

    Raises:
        OSError: the file can't be read, is not regular, or exceeds the limit.
    """
    # Calls of the system, because a file object takes twice as many: for small images they count.
    descriptor, size = _open(path)
    try:
        if size > limit:
            reason = f"it has {size:,} bytes, expected at most {limit:,}"
            raise OSError(errno.EINVAL, reason, str(path))
        # ``size`` bytes, not to the end: the file may grow after the check.
        content = os.read(descriptor, size)
        while len(content) < size and (more := os.read(descriptor, size - len(content))):
            content += more
        return content
    finally:
        os.close(descriptor)


def _open(path: str | Path) -> tuple[int, int]:
    """Return descriptor and size of a regular file."""
    # Opening a FIFO blocks without O_NONBLOCK; the flag has no effect on regular files.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    # fstat of the open descriptor leaves no window to exchange the path after the check.
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode):
        return descriptor, status.st_size
    os.close(descriptor)
    kind = describe_kind(status.st_mode)
    raise OSError(errno.EINVAL, f"it is {kind}, expected a regular file", str(path))
