"""Fair pool of an engine's concurrent requests.

Callers are served in order of arrival. A returned request goes directly to the longest-waiting
caller, so that a thread with an immediate next request can't overtake the others.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar, cast

from qat_lib.errors import ConfigError, EngineBusyError, EngineError, EngineLoadError

logger = logging.getLogger(__name__)

Request = TypeVar("Request")


@dataclass(frozen=True, kw_only=True)
class RequestLimits:
    """Limits of concurrent and waiting callers of an engine.

    Args:
        parallel: number of concurrent requests; None = the backend's default. Each needs separate
            memory: inputs and outputs in OpenVINO, activations in ONNX Runtime, a whole execution
            context on a GPU. All but the first are created on demand.
        waiting: number of waiting callers; the next caller gets an ``EngineBusyError`` immediately.
        timeout: seconds until a waiting caller gets an ``EngineBusyError``.

    Raises:
        ConfigError: a value is out of range.
    """

    parallel: int | None = None
    waiting: int = 256
    timeout: float = 60.0

    def __post_init__(self) -> None:
        if self.parallel is not None and self.parallel < 1:
            raise ConfigError(f"parallel is at least 1, or None. Received: {self.parallel}.")
        if self.waiting < 0:
            raise ConfigError(f"waiting is at least 0. Received: {self.waiting}.")
        if not 0 < self.timeout <= threading.TIMEOUT_MAX:
            raise ConfigError(f"timeout is a positive number of seconds. Received: {self.timeout}.")


class _Ticket(Generic[Request]):
    """A caller in the queue; its lock is released together with a request."""

    __slots__ = ("called", "request")

    def __init__(self) -> None:
        self.request: Request | None = None
        self.called = threading.Lock()
        self.called.acquire()


class RequestPool(Generic[Request]):
    """Lend requests to threads, first come, first served.

    Args:
        make: creates a request; called once now, and again if all are lent and fewer than
            ``parallel`` exist.
        parallel: maximum number of requests.
        limits: limits of waiting callers.
    """

    def __init__(self, make: Callable[[], Request], parallel: int, limits: RequestLimits) -> None:
        self._make = make
        self._limits = limits
        self._lock = threading.Lock()
        self._drained = threading.Condition(self._lock)
        # The first request now: errors such as missing memory appear at load time.
        self._idle: list[Request] = [make()]
        self._unmade = (limits.parallel or parallel) - 1
        self._lent = 0
        self._queue: deque[_Ticket[Request]] = deque()
        self._closed = False

    def take(self) -> Request:
        """Return a request, after a wait if all are lent; the caller must give it back.

        Raises:
            EngineBusyError: too many callers are waiting, or no request became free in time.
            EngineLoadError: the pool is closed.
        """
        with self._lock:
            if self._closed:
                raise EngineLoadError("The engine is closed. Load it again with load_engine.")
            ticket = None
            if self._idle:
                self._lent += 1
                return self._idle.pop()
            if self._unmade:
                self._unmade -= 1
                self._lent += 1
            else:
                ticket = self._enqueue()
        # Outside of the lock: both may take long.
        return self._make_another() if ticket is None else self._wait(ticket)

    def give(self, request: Request) -> None:
        """Return a request to the pool, or pass it to the longest-waiting caller."""
        with self._lock:
            if self._queue:
                # The count of lent requests is unchanged, since the request changes hands directly.
                ticket = self._queue.popleft()
                ticket.request = request
                ticket.called.release()
                return
            self._idle.append(request)
            self._lent -= 1
            if self._closed and not self._lent:
                self._drained.notify_all()

    @contextmanager
    def lend(self) -> Iterator[Request]:
        """Lend a request for the duration of a block."""
        request = self.take()
        try:
            yield request
        finally:
            self.give(request)

    def close(self) -> list[Request]:
        """Reject new callers, serve waiting ones, and return all requests.

        A second call returns none.

        Raises:
            EngineBusyError: requests still run after the timeout; call it again to continue
                waiting.
        """
        with self._lock:
            self._closed = True
            if not self._drained.wait_for(lambda: not self._lent, self._limits.timeout):
                raise EngineBusyError(
                    f"{self._lent} requests still run {self._limits.timeout:g} s after the engine "
                    "was closed, so its memory was not freed. It takes no more requests; call "
                    "close() again to go on waiting."
                )
            requests, self._idle = self._idle, []
            return requests

    # ------------------------------------------------------------------ inside
    def _make_another(self) -> Request:
        """Create one more request, or wait for an existing one if memory is short."""
        try:
            return self._make()
        except BaseException as error:
            no_room = isinstance(error, EngineError)
            with self._lock:
                # Without memory, further attempts would fail too. Other errors free the slot again.
                self._unmade = 0 if no_room else self._unmade + 1
                self._lent -= 1
                if self._closed and not self._lent:
                    self._drained.notify_all()
            if not no_room:
                raise
            logger.warning("the engine runs fewer requests at once than it may: %s", error)
        return self.take()

    def _enqueue(self) -> _Ticket[Request]:
        if len(self._queue) >= self._limits.waiting:
            raise EngineBusyError(
                f"{len(self._queue)} callers wait for the engine already, which is the limit. Send "
                "fewer requests at once, or raise the limit: load_engine(path, "
                "limits=RequestLimits(waiting=...))."
            )
        ticket: _Ticket[Request] = _Ticket()
        self._queue.append(ticket)
        return ticket

    def _wait(self, ticket: _Ticket[Request]) -> Request:
        try:
            if ticket.called.acquire(timeout=self._limits.timeout):
                return cast(Request, ticket.request)
        except BaseException:  # Ctrl-C: do not lose a request that arrived in the meantime
            if not self._withdraw(ticket):
                self.give(cast(Request, ticket.request))
            raise
        # A request may arrive between the timeout and the withdrawal.
        if not self._withdraw(ticket):
            return cast(Request, ticket.request)
        raise EngineBusyError(
            f"No request came free within {self._limits.timeout:g} s. Send fewer requests at once, "
            "or load the engine with more patience: load_engine(path, "
            "limits=RequestLimits(timeout=...))."
        )

    def _withdraw(self, ticket: _Ticket[Request]) -> bool:
        """Remove a ticket from the queue; return False if it already has a request."""
        with self._lock:
            if ticket not in self._queue:
                return False
            self._queue.remove(ticket)
            return True
