"""Retries of requests to a busy store.

If a database is locked or temporarily out of connections, MLflow responds "temporarily unavailable"
(its server: 503). MLflow's client repeats requests to a server for some seconds, but never requests
to a database.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from qatline.components.support.disk_errors import is_disk_full

PATIENCE = 12.0
"""Seconds after which a busy store counts as failed."""

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
    """Return the result of a request; repeat it with growing pauses while the store is busy.

    Args:
        request: may be called repeatedly: a busy store rejects a request without effect.
        seconds: maximum duration of the repetition.
        clock: returns the time in seconds.
        sleep: waits.

    Raises:
        Exception: the last error of the request.
    """
    deadline, pause = clock() + seconds, _FIRST_PAUSE
    while True:
        try:
            return request()
        except Exception as error:
            if not is_busy(error) or clock() + pause > deadline:
                raise
        # The jitter spreads the retries of steps that collided.
        sleep(pause * random.uniform(0.5, 1.0))
        pause = min(2 * pause, _LONGEST_PAUSE)


def is_busy(error: BaseException) -> bool:
    """Return whether an MLflow error means a busy store; a full disk does not count."""
    unavailable = getattr(error, "error_code", "") == "TEMPORARILY_UNAVAILABLE"
    return (unavailable or _BUSY in str(error)) and not is_disk_full(error)
