"""Events of a running step: JSON lines appended to a file.

The launcher sets the file in ``QATLINE_EVENTS``; without it (on a cluster, in a unit test) events
are discarded. Each line is written by a single ``write`` to a file opened for appending: two steps
can share the file, and readers see partial lines only of killed writers.

    {"event": "step_started",  "step": "finetune_qat", "time": 1718000000.0}
    {"event": "waiting",       ..., "holder": "run 2026..."}    runs the same step; "" at the end
    {"event": "progress",      ..., "phase": "training", "current": 3, "total": 40,
                               "metrics": {"loss": 0.2}}
    {"event": "warning",       ..., "message": "..."}
    {"event": "step_finished", ..., "status": "executed" | "reused", "seconds": 12.5,
                               "cpu_seconds": 20.1, "metrics": {...}}
    {"event": "error",         ..., "type": "DataError", "message": "...", "exit_code": 1}
"""

from __future__ import annotations

import json
import logging
import math
import os
import time
from collections.abc import Mapping
from typing import Any, Protocol

from qatline.components.support.credentials import scrub

EVENTS_VARIABLE = "QATLINE_EVENTS"
_LEAST_INTERVAL = 0.1

_log = logging.getLogger(__name__)


class Progress(Protocol):
    """Progress and warnings of a step function."""

    def update(self, phase: str, current: int, total: int, **metrics: float) -> None:
        """Report that ``current`` of ``total`` units of ``phase`` are done, with metrics."""

    def warn(self, message: str) -> None:
        """Report a problem that does not stop the step."""


class NullProgress:
    """Progress without a listener, for tests and direct calls."""

    def update(self, phase: str, current: int, total: int, **metrics: float) -> None:
        """Do nothing."""

    def warn(self, message: str) -> None:
        """Write the message to the log only."""
        _log.warning("%s", message)


class EventProgress:
    """Progress as events, at most ten per second; the first and last of a phase are always sent."""

    def __init__(self, step: str) -> None:
        self._step = step
        self._phase = ""
        self._sent = 0.0

    def update(self, phase: str, current: int, total: int, **metrics: float) -> None:
        """Append a ``progress`` event, at most one per 0.1 s.

        The first and last of a phase are always written.
        """
        now = time.monotonic()
        if phase == self._phase and current < total and now - self._sent < _LEAST_INTERVAL:
            return
        self._phase, self._sent = phase, now
        numbers = {name: float(value) for name, value in metrics.items()}
        emit(
            "progress",
            self._step,
            phase=phase,
            current=int(current),
            total=int(total),
            metrics=numbers,
        )

    def warn(self, message: str) -> None:
        """Append a ``warning`` event and write the message to the log."""
        _log.warning("%s", message)
        emit("warning", self._step, message=message)


def emit(event: str, step: str, **fields: Any) -> None:
    """Append one event to the file ``QATLINE_EVENTS``, if set.

    Events that cannot be written, for example on a full disk, are logged and dropped: reporting
    must not abort the reported work. Secrets are masked; non-finite numbers become null, since JSON
    cannot represent them.
    """
    path = os.environ.get(EVENTS_VARIABLE)
    if not path:
        return
    line = (
        json.dumps(
            _recordable({"event": event, "step": step, "time": time.time(), **fields}),
            allow_nan=False,
        )
        + "\n"
    )
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            size = os.fstat(descriptor).st_size
            # A killed process or a temporarily full disk may have left a partial line.
            whole = size == 0 or os.pread(descriptor, 1, size - 1) == b"\n"
            os.write(descriptor, (line if whole else f"\n{line}").encode())
        finally:
            os.close(descriptor)
    except OSError as error:
        _log.warning("the event %s of step %s can't be written to %s: %s", event, step, path, error)


def _recordable(value: Any) -> Any:
    if isinstance(value, str):
        return scrub(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _recordable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_recordable(item) for item in value]
    return value
