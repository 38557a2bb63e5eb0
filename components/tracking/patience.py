"""Patience with a store that is busy.

A database that is locked, or out of connections for a moment, makes MLflow answer "temporarily
unavailable" (its server: 503). MLflow's client repeats a request to a server for some seconds, one
to a database not at all.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from qatline.components.support.disk_errors import is_disk_full

PATIENCE = 12.0
"""Seconds after which a busy store counts as one that fails."""

_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 3.0
_BUSY = "too many 503 error responses"

_T = TypeVar("_T")


def patient(
    request: Callable[[], _T],
    *,
    seconds: float = PATIENCE,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> _T:
    """Return what a request returns; repeat it, with growing pauses, while the store is busy.

    Args:
        request: may be made twice: a store that says that it is busy has done nothing.
        seconds: how long it is repeated.
        clock: the time in seconds.
        sleep: waits.

    Raises:
        Exception: what the request raises, at last.
    """
    deadline, pause = clock() + seconds, _FIRST_PAUSE
    while True:
        try:
            return request()
        except Exception as error:
            if not is_busy(error) or clock() + pause > deadline:
                raise
        sleep(pause * random.uniform(0.5, 1.0))
        pause = min(2 * pause, _LONGEST_PAUSE)


def is_busy(error: BaseException) -> bool:
    """Whether an error of MLflow says that the store is busy; a full disk is something else."""
    unavailable = getattr(error, "error_code", "") == "TEMPORARILY_UNAVAILABLE"
    return (unavailable or _BUSY in str(error)) and not is_disk_full(error)
