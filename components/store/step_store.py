"""Content-addressed store of finished steps.

Executions with the same code, settings and inputs are computed once.

``<store>/<step>/<key>/`` contains the published output of one execution. The key covers all
dependencies of the result: entries are never stale, and only damaged ones are replaced. KFP's own
cache uses arguments and image as its key and ignores the code of the installed package.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from qat_lib.errors import StorageError
from qat_lib.support.digests import sha256_of_json
from qat_lib.support.locks import file_lock
from qatline.components.store.directories import Manifest, verify_directory
from qatline.components.support.disk_errors import as_storage_error

STORE_VARIABLE = "QATLINE_STORE"
RUN_VARIABLE = "QATLINE_RUN"
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
    """Return the key of an execution: the SHA-256 of all dependencies of its result.

    Args:
        step: name of the step.
        code: digest of the sources.
        settings: sections that the step reads, as JSON values.
        seed: seed of the step, or None if it has none.
        inputs: manifest digest of each input directory.
        files: content digest of each file named in the settings.
        versions: versions of the libraries that affect results.
        machine: identity of the machine, for machine-bound steps.
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
    return sha256_of_json(parts)


def this_process() -> str:
    """Return the name of this process: its run, if any, and its id."""
    process = f"process {os.getpid()} on {socket.gethostname()}"
    run = os.environ.get(RUN_VARIABLE)
    return f"run {run} ({process})" if run else process


class StepStore:
    """Store of step results in one folder, safe for concurrent processes of one machine."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @classmethod
    def from_environment(cls) -> StepStore | None:
        """Return the store at ``QATLINE_STORE``, or None if it is not set."""
        root = os.environ.get(STORE_VARIABLE)
        return cls(Path(root)) if root else None

    def path(self, step: str, key: str) -> Path:
        """Return the path of a key's entry, existing or not."""
        return self.root / step / key

    def find(
        self, step: str, key: str, *, warn: Callable[[str], None] = _log.warning
    ) -> Manifest | None:
        """Return the manifest of a finished, undamaged entry, else None.

        ``warn`` receives a message about damage.
        """
        path = self.path(step, key)
        if not path.is_dir():
            return None
        try:
            manifest = verify_directory(path)
        except StorageError as error:
            warn(f"the stored result of step {step} is damaged and is computed again: {error}")
            return None
        # A directory copied or renamed by hand has a valid manifest, but of another execution.
        return manifest if (manifest.step, manifest.key) == (step, key) else None

    @contextmanager
    def hold(self, step: str, key: str, waiting: Callable[[str], None]) -> Iterator[None]:
        """Lock a key: one process computes its result, others wait.

        Args:
            step: name of the step.
            key: key of the execution.
            waiting: receives the owner of the lock at each change, and "" at the end of the wait.

        Raises:
            StorageError: the disk is full or the folder is not writable.
        """
        path = self.root / step / f".{key}.lock"
        with ExitStack() as stack:
            try:
                stack.enter_context(file_lock(path, owner=this_process(), waiting=waiting))
            except OSError as error:
                raise as_storage_error(error, path) from error
            yield
