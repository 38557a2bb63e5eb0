"""Read untrusted files: regular ones only, up to a limit.

A pipe never ends, nor does a link to ``/dev/zero``. What can't be read raises an OSError with the
reason, which the caller puts into an exception of its own.
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
    """Return an irregular file's kind: ``a folder``, ``a pipe``...

    It goes by the file's ``st_mode``.
    """
    return next((name for is_kind, name in _KINDS if is_kind(mode)), "something else")


def open_regular(path: str | Path) -> BinaryIO:
    """Open a file for reading, without waiting for a pipe's other end.

    Raises:
        OSError: it can't be opened, or is no regular file; ``strerror`` says what it is.
    """
    # O_NONBLOCK does nothing to a regular file.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    raise OSError(errno.EINVAL, f"it is {describe_kind(mode)}, expected a regular file", str(path))


def read_regular(path: str | Path, limit: int) -> bytes:
    """Return the content of a regular file of at most ``limit`` bytes.

    Raises:
        OSError: it can't be read, is no regular file, or is larger.
    """
    with open_regular(path) as stream:
        size = os.fstat(stream.fileno()).st_size
        if size > limit:
            reason = f"it has {size:,} bytes, expected at most {limit:,}"
            raise OSError(errno.EINVAL, reason, str(path))
        return stream.read(size)
