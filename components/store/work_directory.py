"""Directories for unfinished work, removed by their process or the next one."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
from pathlib import Path

from qatline.components.support.disk_errors import as_storage_error


def work_directory(parent: Path, name: str) -> Path:
    """Create an empty directory in ``parent`` for unfinished work; remove abandoned ones.

    Raises:
        StorageError: the disk is full or the folder is not writable.
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
    """Remove work directories of terminated processes of this machine."""
    prefix = _prefix()
    for path in parent.glob(f"{prefix}*"):
        owner = path.name.removeprefix(prefix).partition("-")[0]
        # Process ids are valid on one host only; the prefix contains the host's name.
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
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:  # ended meanwhile, or no Linux
        return True
    # A killed process takes signals until its parent has read its exit code.
    return state not in "ZX"
