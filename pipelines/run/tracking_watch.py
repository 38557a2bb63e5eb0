"""Monitoring of the tracking store during long steps.

Steps contact the store only at their end. The monitor reports an outage within a minute, so that
the store can be restarted in time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from qat_lib.errors import QatlineError
from qatline.components.support.credentials import scrub
from qatline.components.support.events import emit
from qatline.components.tracking.store import probe

INTERVAL = 10.0
"""Seconds between two probes."""

_MISSES = 2  # in a row; a single one may be a restart, or a busy moment


class TrackingWatch:
    """Reports each outage of the store once, and its recovery once.

    Args:
        uri: the tracking URI.
        required: whether the run fails without the store.
        tell: receives the messages.
    """

    def __init__(self, uri: str, *, required: bool, tell: Callable[[str], None]) -> None:
        self._uri = uri
        self._required = required
        self._tell = tell
        self._misses = 0
        self._last_answer = time.time()

    def look(self) -> None:
        """Probe the store once."""
        try:
            probe(self._uri)
        except QatlineError:
            self._misses += 1
            if self._misses == _MISSES:
                self._tell(self._away())
            return
        if self._misses >= _MISSES:
            self._tell(f"the tracking store {scrub(self._uri)} answers again")
        self._misses, self._last_answer = 0, time.time()

    def _away(self) -> str:
        since = time.strftime("%H:%M:%S", time.localtime(self._last_answer))
        what = (
            "The step that runs is finished and kept; then the run stops, unless the store is back."
            if self._required
            else "The run goes on without it; `qatline sync` records it later."
        )
        return f"the tracking store {scrub(self._uri)} has not answered since {since}. {what}"


@contextmanager
def watched(uri: str, *, required: bool, interval: float = INTERVAL) -> Iterator[None]:
    """Probe the store every ``interval`` seconds until the block ends."""
    watch = TrackingWatch(
        uri, required=required, tell=lambda text: emit("warning", "", message=text)
    )
    ended = threading.Event()

    def follow() -> None:
        while not ended.wait(interval):
            watch.look()

    # A daemon thread: a probe in progress must not delay the end of the run.
    thread = threading.Thread(target=follow, name="tracking-watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
