"""Directories for unfinished work, removed by their process or the next one."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
from pathlib import Path

from qatline.components.support.disk_errors import as_storage_error


def work_directory(parent: Path, name: str) -> Path:
    """Make an empty directory in ``parent`` for unfinished work; remove abandoned ones.

    Raises:
        StorageError: the disk is full or the place can't be written.
    """
    try:
        parent.mkdir(parents=True, exist_ok=True)
        sweep(parent)
        work = parent / f"{_prefix()}{os.getpid()}-{name[:12]}-{secrets.token_hex(6)}"
        work.mkdir()
    except OSError as error:
        raise as_storage_error(error, parent) from error
    return work


def sweep(parent: Path) -> None:
    """Remove the work of processes of this machine that are gone."""
    prefix = _prefix()
    for path in parent.glob(f"{prefix}*"):
        owner = path.name.removeprefix(prefix).partition("-")[0]
        if owner.isdigit() and not _is_alive(int(owner)):
            shutil.rmtree(path, ignore_errors=True)


def _prefix() -> str:
    return f".work-{socket.gethostname()}-"


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
