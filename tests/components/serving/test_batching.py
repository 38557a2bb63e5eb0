"""Batches of waiting requests."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import numpy as np
import pytest

from qat_lib.errors import EngineBusyError, EngineError
from qatline.components.serving.batching import Batcher


class Engine:
    """Doubles numbers; waits for ``go``, and refuses batches with a negative one."""

    def __init__(self) -> None:
        self.go, self.sizes = threading.Event(), list[int]()

    def __call__(self, arrays: Any, wanted: frozenset[str]) -> dict[str, Any]:
        self.go.wait(10)
        self.sizes.append(len(arrays["x"]))
        if arrays["x"].min() < 0:
            raise EngineError("negative")
        return {"y": arrays["x"] * 2, "z": arrays["x"]}


def run(engine: Engine, requests: list[Any], **options: Any) -> list[Any]:
    """Send all requests at once, then let the engine run; return answers or errors."""
    options = {"largest": 4, "parallel": 1, "waiting": 100, **options}

    async def send() -> list[Any]:
        batcher = Batcher(engine, **options)
        tasks = [asyncio.create_task(batcher.run({"x": x}, ["y"])) for x in requests]
        await asyncio.sleep(0.05)
        engine.go.set()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        await batcher.drain()
        return list(found)

    return asyncio.run(send())


def test_waiting_requests_share_batches_in_order() -> None:
    engine = Engine()
    requests = [np.full((size, 2), number) for number, size in enumerate([1, 1, 2, 3, 1, 6, 1])]
    found = run(engine, requests)
    for x, answer in zip(requests, found, strict=True):
        assert set(answer) == {"y"}
        np.testing.assert_array_equal(answer["y"], x * 2)
    # The first runs alone, since it finds a free engine; a request above the limit runs alone.
    assert engine.sizes == [1, 3, 4, 6, 1]


def test_shapes_are_not_mixed() -> None:
    engine = Engine()
    requests = [np.ones((1, 2)), np.ones((1, 2)), np.ones((1, 3)), np.ones((1, 2))]
    assert [answer["y"].shape for answer in run(engine, requests)] == [x.shape for x in requests]
    assert engine.sizes == [1, 1, 1, 1]


def test_an_error_reaches_its_request_only() -> None:
    engine = Engine()
    requests = [np.ones((1, 1)), np.ones((1, 1)), -np.ones((1, 1)), np.ones((1, 1))]
    *good, _ = found = run(engine, requests)
    assert isinstance(found[2], EngineError)
    assert all(isinstance(found[index], dict) for index in (0, 1, 3))
    assert good


def test_requests_beyond_the_limit_are_refused() -> None:
    found = run(Engine(), [np.ones((1, 1))] * 5, waiting=2)
    assert [isinstance(each, EngineBusyError) for each in found] == [False] * 3 + [True] * 2


def test_cancelled_requests_are_not_computed() -> None:
    engine = Engine()

    async def send() -> Any:
        batcher = Batcher(engine, largest=4, parallel=1, waiting=9)
        tasks = [
            asyncio.create_task(batcher.run({"x": np.full((1, 1), n)}, ["y"])) for n in range(3)
        ]
        await asyncio.sleep(0.05)
        tasks[1].cancel()
        await asyncio.sleep(0)
        engine.go.set()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        await batcher.drain()
        return found

    first, cancelled, last = asyncio.run(send())
    assert isinstance(cancelled, asyncio.CancelledError)
    assert (first["y"].item(), last["y"].item()) == (0, 4)
    assert engine.sizes == [1, 1]


def test_parallel_batches_run_at_once() -> None:
    both, engine = threading.Barrier(2, timeout=10), Engine()
    engine.go.set()

    def compute(arrays: Any, wanted: frozenset[str]) -> dict[str, Any]:
        both.wait()
        return engine(arrays, wanted)

    async def send() -> list[Any]:
        batcher = Batcher(compute, largest=1, parallel=2, waiting=9)
        return list(
            await asyncio.gather(*(batcher.run({"x": np.ones((1, 1))}, ["y"]) for _ in range(4)))
        )

    assert len(asyncio.run(send())) == 4


@pytest.mark.parametrize("seen", [[1, 3]])
def test_batches_are_observed(seen: list[int]) -> None:
    sizes: list[int] = []
    run(Engine(), [np.ones((1, 1))] * 4, observe=sizes.append)
    assert sizes == seen
