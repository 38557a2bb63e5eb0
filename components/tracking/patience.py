"""Retries of requests to a busy store.

If a database is locked or temporarily out of connections, MLflow responds "temporarily unavailable"
(its server: 503). MLflow's client repeats requests to a server for some seconds, but never requests
to a database.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from qatline.components.support.disk_errors import is_disk_full
from qatline.components.support.retries import repeated

PATIENCE = 12.0
"""Seconds after which a busy store counts as failed."""

_BUSY = "too many 503 error responses"

_T = TypeVar("_T")


def patient(request: Callable[[], _T]) -> _T:
    """Return the result of a request; repeat it while the store is busy.

    A busy store rejects a request without effect.

    Raises:
        Exception: the last error of the request.
    """
    return repeated(request, is_busy, seconds=PATIENCE)


def is_busy(error: BaseException) -> bool:
    """Return whether an MLflow error means a busy store; a full disk does not count."""
    unavailable = getattr(error, "error_code", "") == "TEMPORARILY_UNAVAILABLE"
    return (unavailable or _BUSY in str(error)) and not is_disk_full(error)
