"""A content-addressed store of finished steps.

The same code, settings and inputs are never computed twice.

``<store>/<step>/<key>/`` is the published output of one execution. The key covers everything that
the result depends on, so an entry never goes stale; it is only ever added, verified, or replaced
when damaged. KFP's own cache keys on arguments and image and does not see the code of the installed
package.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from qat_lib.errors import StorageError
from qatline.components.store.directories import Manifest, verify_directory
from qatline.components.store.key_lock import held

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
    """Return one execution's key: SHA-256 of all that determines the result.

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
    """A store of step results in one folder.

    It is safe to share between processes of one machine.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    @classmethod
    def from_environment(cls) -> StepStore | None:
        """Return the store that ``QATLINE_STORE`` names, or None when it is unset."""
        root = os.environ.get(STORE_VARIABLE)
        return cls(Path(root)) if root else None

    def path(self, step: str, key: str) -> Path:
        """Return the entry path of a key, existing or not."""
        return self.root / step / key

    def find(
        self, step: str, key: str, *, warn: Callable[[str], None] = _log.warning
    ) -> Manifest | None:
        """Return the manifest of a finished and undamaged entry, else None.

        ``warn`` is told of damage.
        """
        path = self.path(step, key)
        if not path.is_dir():
            return None
        try:
            manifest = verify_directory(path)
        except StorageError as error:
            warn(f"the stored result of step {step} is damaged and is computed again: {error}")
            return None
        return manifest if (manifest.step, manifest.key) == (step, key) else None

    def hold(
        self, step: str, key: str, waiting: Callable[[str], None]
    ) -> AbstractContextManager[None]:
        """Hold a key against other processes that would compute the same.

        See ``qatline.components.store.key_lock``.
        """
        return held(self.root / step / f".{key}.lock", waiting)
