"""The request pool for threads: in order, bounded, drained on close."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from qat_lib.engines.request_pool import RequestLimits, RequestPool
from qat_lib.errors import ConfigError, EngineBusyError, EngineError, EngineLoadError


def make_pool(parallel: int = 1, *, waiting: int = 8, timeout: float = 30.0) -> RequestPool[int]:
    numbers = itertools.count()
    return RequestPool(
        lambda: next(numbers), parallel, RequestLimits(waiting=waiting, timeout=timeout)
    )


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


@pytest.mark.parametrize(
    "wrong", [{"parallel": 0}, {"waiting": -1}, {"timeout": 0.0}, {"timeout": float("nan")}]
)
def test_limits_out_of_range(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="Received"):
        RequestLimits(**wrong)  # type: ignore[arg-type]


def test_pool_makes_requests_when_they_are_needed() -> None:
    made: list[int] = []

    def make() -> int:
        made.append(len(made))
        return made[-1]

    pool = RequestPool(make, 2, RequestLimits())
    for _ in range(3):
        pool.give(pool.take())
    assert made == [0]
    taken = [pool.take(), pool.take()]
    assert sorted(taken) == made == [0, 1]


def test_limits_override_what_suits_the_backend() -> None:
    pool = RequestPool(lambda: None, 4, RequestLimits(parallel=1, waiting=0))
    pool.take()
    with pytest.raises(EngineBusyError):
        pool.take()


def test_pool_serves_callers_in_order() -> None:
    pool, served = make_pool(), []
    held = pool.take()

    def serve(index: int) -> None:
        with pool.lend():
            served.append(index)

    with ThreadPoolExecutor(6) as threads:
        for index in range(6):
            threads.submit(serve, index)
            wait_until(lambda index=index: len(pool._queue) == index + 1)  # type: ignore[misc]
        pool.give(held)
    assert served == list(range(6))


def test_pool_lets_no_thread_overtake() -> None:
    """A thread that asks again at once comes after a waiting one."""
    pool, order = make_pool(), []
    held = pool.take()

    def wait() -> None:
        with pool.lend():
            order.append("waiting")

    thread = threading.Thread(target=wait)
    thread.start()
    wait_until(lambda: bool(pool._queue))
    pool.give(held)
    with pool.lend():
        order.append("again")
    thread.join(30)
    assert order == ["waiting", "again"]


def test_full_queue_refuses_the_next_caller() -> None:
    pool = make_pool(waiting=1)
    held = pool.take()
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(pool.take)
        wait_until(lambda: bool(pool._queue))
        with pytest.raises(EngineBusyError, match="1 callers wait for the engine already"):
            pool.take()
        pool.give(held)
        assert waiting.result(30) == held


def test_caller_gives_up_after_the_timeout() -> None:
    pool = make_pool(timeout=0.05)
    held = pool.take()
    with pytest.raises(EngineBusyError, match=r"No request came free within 0\.05 s"):
        pool.take()
    pool.give(held)
    assert pool.take() == held  # the place in the queue was given up, too


def test_close_serves_earlier_and_refuses_later_callers() -> None:
    pool = make_pool()
    held = pool.take()
    with ThreadPoolExecutor(3) as threads:

        def serve() -> int:
            with pool.lend() as request:
                return request

        waiting = [threads.submit(serve) for _ in range(2)]
        wait_until(lambda: len(pool._queue) == 2)
        closing = threads.submit(pool.close)
        wait_until(lambda: pool._closed)
        with pytest.raises(EngineLoadError, match="closed"):
            pool.take()
        assert not closing.done()
        pool.give(held)
        assert [future.result(30) for future in waiting] == [held, held]
        assert closing.result(30) == [held]
    assert pool.close() == []


def test_close_gives_up_where_a_request_never_ends() -> None:
    pool = make_pool(timeout=0.05)
    held = pool.take()
    with pytest.raises(EngineBusyError, match="1 requests still run"):
        pool.close()
    pool.give(held)
    assert pool.close() == [held]


def test_no_room_for_another_request_is_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    rooms = iter([1])

    def make() -> int:
        for room in rooms:
            return room
        raise EngineError("The GPU is out of memory.")

    pool = RequestPool(make, 3, RequestLimits())
    held = pool.take()
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(pool.take)
        wait_until(lambda: bool(pool._queue))
        pool.give(held)
        assert waiting.result(30) == held
    assert "The GPU is out of memory" in caplog.text
    pool.give(held)
    assert pool.close() == [held]


def test_a_failure_to_make_a_request_is_not_counted() -> None:
    made = iter([0])
    pool = RequestPool(lambda: next(made), 2, RequestLimits())
    held = pool.take()
    for _ in range(2):
        with pytest.raises(StopIteration):
            pool.take()
    pool.give(held)
    assert pool.close() == [held]


@pytest.mark.parametrize("called", [False, True])
def test_ctrl_c_while_waiting_loses_nothing(called: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it comes before the caller is called or after."""
    pool = make_pool()
    held = pool.take()

    class InterruptedLock:
        def acquire(self, timeout: float) -> bool:
            if called:
                pool.give(held)
            raise KeyboardInterrupt

        def release(self) -> None:
            pass

    class InterruptedTicket:
        request, called = None, InterruptedLock()

    monkeypatch.setattr("qat_lib.engines.request_pool._Ticket", InterruptedTicket)
    with pytest.raises(KeyboardInterrupt):
        pool.take()
    if not called:
        pool.give(held)
    assert pool.close() == [held]
