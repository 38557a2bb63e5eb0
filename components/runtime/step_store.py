"""A content-addressed store of finished steps: the same code, settings and inputs are never computed twice.

``<store>/<step>/<key>/`` is the published output of one execution. The key covers everything that the
result depends on, so an entry never goes stale; it is only ever added, verified, or replaced when damaged.
KFP's own cache keys on arguments and image and does not see the code of the installed package.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import socket
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from components.runtime.artifacts import Manifest, as_storage_error, verify
from qat_lib.errors import StorageError

STORE_VARIABLE = "QATLINE_STORE"
_KEY_VERSION = 1

_log = logging.getLogger(__name__)


def step_key(
    step: str,
    *,
    code: str,
    settings: Mapping[str, Any],
    seed: int | None,
    inputs: Mapping[str, str],
    files: Mapping[str, str],
    versions: Mapping[str, str | None],
    machine: str | None = None,
) -> str:
    """Return the key of one execution: SHA-256 over all that its result depends on.

    Args:
        step: name of the step.
        code: digest of the sources that it may run.
        settings: the sections that it reads, as JSON values.
        seed: its seed, or None for a step that takes none.
        inputs: manifest digest of each input directory.
        files: content digest of each file that the settings name.
        versions: versions of the libraries that matter.
        machine: identity of the machine, for a step whose result is bound to it.
    """
    parts = {
        "version": _KEY_VERSION,
        "step": step,
        "code": code,
        "settings": settings,
        "seed": seed,
        "inputs": inputs,
        "files": files,
        "versions": versions,
        "machine": machine,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True, allow_nan=False).encode()).hexdigest()


class StepStore:
    """The store below one folder. Safe to share between processes of one machine."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @classmethod
    def from_environment(cls) -> StepStore | None:
        """Return the store that ``QATLINE_STORE`` names, or None when it is unset."""
        root = os.environ.get(STORE_VARIABLE)
        return cls(Path(root)) if root else None

    def path(self, step: str, key: str) -> Path:
        """Return where the entry of this key lies, whether it exists or not."""
        return self.root / step / key

    def find(self, step: str, key: str) -> Manifest | None:
        """Return the manifest of a finished and undamaged entry, else None."""
        path = self.path(step, key)
        if not path.is_dir():
            return None
        try:
            manifest = verify(path)
        except StorageError as error:
            _log.warning("the stored result of step %s is damaged and is computed again: %s", step, error)
            return None
        return manifest if (manifest.step, manifest.key) == (step, key) else None

    def work_directory(self, step: str, key: str) -> Path:
        """Return a new empty directory beside the entry, to be published or removed by the caller."""
        return work_directory(self.root / step, key)


def work_directory(parent: Path, name: str) -> Path:
    """Make an empty directory in ``parent`` for unfinished work, and remove those that killed processes left there.

    Raises:
        StorageError: the disk is full or the place can't be written.
    """
    host = socket.gethostname()
    try:
        parent.mkdir(parents=True, exist_ok=True)
        _sweep(parent, host)
        return Path(tempfile.mkdtemp(prefix=f".work-{host}-{os.getpid()}-{name[:12]}-", dir=parent))
    except OSError as error:
        raise as_storage_error(error, parent) from error


def _sweep(parent: Path, host: str) -> None:
    prefix = f".work-{host}-"
    for path in parent.glob(f"{prefix}*"):
        owner = path.name.removeprefix(prefix).partition("-")[0]
        if owner.isdigit() and not _is_alive(int(owner)):
            shutil.rmtree(path, ignore_errors=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
