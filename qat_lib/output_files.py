"""Where a command may put a file. Files are written beside their place and renamed, which would replace a device."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def check_target(path: Path) -> None:
    """Check that a file can be written at ``path`` without replacing what is no file.

    Raises:
        OSError: a folder, a device, a pipe or a socket is there, or the name is empty.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "expected the place of a file, found a device, a pipe or a socket", str(path))
