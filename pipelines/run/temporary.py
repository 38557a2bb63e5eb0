"""Folder for a run's temporary files, removed with the run."""

from __future__ import annotations

import glob
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_VARIABLE = "TMPDIR"


@contextmanager
def temporary_folder(run_id: str) -> Iterator[None]:
    """Redirect temporary files of this process and its children to a new folder.

    The folder is removed at the end of the block.
    """
    before = os.environ.get(_VARIABLE)
    with tempfile.TemporaryDirectory(prefix=_prefix(run_id), ignore_cleanup_errors=True) as folder:
        try:
            os.environ[_VARIABLE] = tempfile.tempdir = folder
            yield
        finally:
            tempfile.tempdir = None
            os.environ.pop(_VARIABLE)
            if before is not None:
                os.environ[_VARIABLE] = before


def clear_temporary(run_id: str) -> None:
    """Remove the temporary files left by killed processes of a run."""
    for left in Path(tempfile.gettempdir()).glob(f"{glob.escape(_prefix(run_id))}*"):
        shutil.rmtree(left, ignore_errors=True)


def _prefix(run_id: str) -> str:
    return f"qatline-{run_id}-"
