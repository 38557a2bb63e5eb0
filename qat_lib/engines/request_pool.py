"""A fair pool of an engine's concurrent requests.

Callers are served in the order in which they came. A request that is given back goes straight to
the caller that has waited longest, so that a thread which asks again at once can't overtake the
others.
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
        parallel: requests that run at the same time; None = what suits the backend. Each takes
            memory of its own: inputs and outputs in OpenVINO, activations in ONNX Runtime, a whole
            execution context on a GPU. All but the first are made when they are needed.
        waiting: callers that may wait for a request; the next one gets an ``EngineBusyError`` at
            once.
        timeout: seconds after which a caller that waits gets an ``EngineBusyError``.

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
    """A caller in the queue; its lock opens with a request."""

    __slots__ = ("called", "request")

    def __init__(self) -> None:
        self.request: Request | None = None
        self.called = threading.Lock()
        self.called.acquire()


class RequestPool(Generic[Request]):
    """Lend requests to threads, first come, first served.

    Args:
        make: makes a request; called once now, and again while all are lent and fewer than
            ``parallel`` exist.
        parallel: how many requests there may be.
        limits: how many callers may wait, and how long.
    """

    def __init__(self, make: Callable[[], Request], parallel: int, limits: RequestLimits) -> None:
        self._make = make
        self._limits = limits
        self._lock = threading.Lock()
        self._drained = threading.Condition(self._lock)
        self._idle: list[Request] = [make()]
        self._unmade = (limits.parallel or parallel) - 1
        self._lent = 0
        self._queue: deque[_Ticket[Request]] = deque()
        self._closed = False

    def take(self) -> Request:
        """Return a request, waiting if all are lent.

        The caller must give it back.

        Raises:
            EngineBusyError: too many callers wait already, or none came free in time.
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
        return self._make_another() if ticket is None else self._wait(ticket)

    def give(self, request: Request) -> None:
        """Take back what ``take`` returned, for the caller that has waited longest."""
        with self._lock:
            if self._queue:
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
        """Take a request for the length of a block."""
        request = self.take()
        try:
            yield request
        finally:
            self.give(request)

    def close(self) -> list[Request]:
        """Refuse new callers, serve those that came before, and return all requests.

        A second call returns none.

        Raises:
            EngineBusyError: requests still run after the timeout; call it again to go on waiting.
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
        """Make one more request.

        Where there is no room for it, wait for one of those that there are.
        """
        try:
            return self._make()
        except BaseException as error:
            no_room = isinstance(error, EngineError)
            with self._lock:
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
        except BaseException:  # Ctrl-C: a request that came meanwhile must not be lost
            if not self._withdraw(ticket):
                self.give(cast(Request, ticket.request))
            raise
        if not self._withdraw(ticket):
            return cast(Request, ticket.request)
        raise EngineBusyError(
            f"No request came free within {self._limits.timeout:g} s. Send fewer requests at once, "
            "or load the engine with more patience: load_engine(path, "
            "limits=RequestLimits(timeout=...))."
        )

    def _withdraw(self, ticket: _Ticket[Request]) -> bool:
        """Remove a ticket from the queue; return False if already called."""
        with self._lock:
            if ticket not in self._queue:
                return False
            self._queue.remove(ticket)
            return True
