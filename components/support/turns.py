"""Turns of steps in concurrent runs: a step that measures durations runs alone.

The steps of a sweep share a lock file; a timed step holds it exclusively. Without ``QATLINE_TURNS``
nothing waits.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

TURNS_VARIABLE = "QATLINE_TURNS"
"""Environment variable with the path of the lock file."""


@contextmanager
def turn(*, alone: bool) -> Iterator[None]:
    """Wait for the turn of a step.

    Args:
        alone: whether no other step may run meanwhile.
    """
    path = os.environ.get(TURNS_VARIABLE)
    if not path:
        yield
        return
    # New steps queue behind a waiting timed step: it would otherwise never find the file free.
    with (
        _locked(f"{path}.queue", fcntl.LOCK_EX) as queue,
        _locked(path, fcntl.LOCK_EX if alone else fcntl.LOCK_SH),
    ):
        fcntl.flock(queue, fcntl.LOCK_UN)
        yield


@contextmanager
def _locked(path: str, kind: int) -> Iterator[int]:
    """Hold a lock on a file; the operating system releases it if the process is killed."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, kind)
        yield descriptor
    finally:
        os.close(descriptor)
