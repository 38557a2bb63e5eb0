"""Folder for the checkpoints of an execution, kept for its next attempt."""

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
"""Days without a new checkpoint after which the state of an abandoned training is deleted."""


@contextmanager
def checkpoint_folder(step: str, key: str, store: StepStore | None) -> Iterator[Path | None]:
    """Yield the checkpoint folder of an execution, or None without one; the execution creates it.

    It is below ``QATLINE_CHECKPOINTS``, else in the step store. Its name contains the key of the
    execution: other settings, data or code use another folder. It is removed if the block succeeds;
    folders of other executions in the store are removed after ``KEPT_DAYS`` days.

    Args:
        step: name of the step.
        key: key of the execution.
        store: the step store, if any.
    """
    place = os.environ.get(CHECKPOINTS_VARIABLE)
    if place:
        folder: Path | None = Path(place) / step / key
    else:
        folder = None if store is None else store.root / step / f".{key}.checkpoints"
    if folder is not None and not place:
        _sweep(folder)
    # No try/finally: after an exception the checkpoints must remain for the next attempt.
    yield folder
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)


def _sweep(own: Path) -> None:
    """Remove other executions' folders without a checkpoint in the last ``KEPT_DAYS`` days."""
    for folder in own.parent.glob(".*.checkpoints"):
        try:
            age = time.time() - folder.stat().st_mtime
        except OSError:  # removed by another process
            continue
        if age > KEPT_DAYS * 86400 and folder != own:
            shutil.rmtree(folder, ignore_errors=True)
