"""One worker of a training, as a process: ``python -m tests.components.training.one_worker``.

Arguments: a case of ``interrupted`` and a folder, which gets ``<worker>-of-<workers>.npz`` with the
final variables and the history. ``TF_CONFIG`` says which worker it is.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from qatline.components.workers.workers import current_workers
from tests.components.training.interrupted import train


def main(case: str, folder: Path) -> None:
    """Take part in a training, and write what came of it."""
    workers = current_workers()
    found = train(case, None, 0)
    np.savez(folder / f"{workers.index}-of-{workers.count}.npz", **found)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
