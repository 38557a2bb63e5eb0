"""The folder in which an execution keeps checkpoints, for its next attempt to find."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from qatline.components.store.step_store import StepStore

CHECKPOINTS_VARIABLE = "QATLINE_CHECKPOINTS"
KEPT_DAYS = 30
"""Days without a new checkpoint after which a training that nobody resumed is forgotten."""


@contextmanager
def checkpoint_folder(step: str, key: str, store: StepStore | None) -> Iterator[Path | None]:
    """Yield an execution's folder for checkpoints, which it makes itself; None for none.

    It is below ``QATLINE_CHECKPOINTS``, else in the step store. Its name has the key of the
    execution, so that other settings, data or code find another one. It is removed when the block
    succeeds; those of other executions in the store, after ``KEPT_DAYS`` days.

    Args:
        step: name of the step.
        key: of the execution.
        store: the step store, if any.
    """
    place = os.environ.get(CHECKPOINTS_VARIABLE)
    if place:
        folder: Path | None = Path(place) / step / key
    else:
        folder = None if store is None else store.root / step / f".{key}.checkpoints"
    if folder is not None and not place:
        _sweep(folder)
    yield folder
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)


def _sweep(own: Path) -> None:
    """Remove other executions' folders that got no checkpoint for ``KEPT_DAYS`` days."""
    for folder in own.parent.glob(".*.checkpoints"):
        try:
            age = time.time() - folder.stat().st_mtime
        except OSError:  # another process was quicker
            continue
        if age > KEPT_DAYS * 86400 and folder != own:
            shutil.rmtree(folder, ignore_errors=True)
