"""Repetition of requests after transient errors."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")


def repeated(
    request: Callable[[], _T],
    is_transient: Callable[[Exception], bool],
    *,
    seconds: float,
    first_pause: float = 0.2,
    longest_pause: float = 3.0,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> _T:
    """Return the result of a request; repeat it with growing pauses after transient errors.

    Args:
        request: may be called repeatedly.
        is_transient: returns whether a repetition may succeed after an error.
        seconds: maximum duration of the repetition.
        first_pause: pause after the first error in seconds, doubled after each further one.
        longest_pause: maximum of the pauses.
        clock: returns the time in seconds.
        sleep: waits.

    Raises:
        Exception: the last error of the request.
    """
    deadline, pause = clock() + seconds, first_pause
    while True:
        try:
            return request()
        except Exception as error:
            if not is_transient(error) or clock() + pause > deadline:
                raise
        # The jitter spreads the requests of processes that collided.
        sleep(pause * random.uniform(0.5, 1.0))
        pause = min(2 * pause, longest_pause)
