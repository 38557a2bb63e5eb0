"""Joins waiting requests into batches of an engine."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qat_lib.errors import EngineBusyError

Array = NDArray[Any]
Arrays = Mapping[str, Array]


@dataclass(frozen=True, kw_only=True, eq=False)
class _Waiting:
    arrays: Arrays
    samples: int
    wanted: frozenset[str]
    answer: asyncio.Future[dict[str, Any]]

    @property
    def form(self) -> list[tuple[int, ...]]:
        """Shapes of a sample; requests of one batch have the same."""
        return [x.shape[1:] for x in self.arrays.values()]


class Batcher:
    """Runs requests in batches, first come, first served.

    A free worker takes the waiting requests at once: batches grow with the load, and no request
    waits for others to arrive.

    Args:
        compute: returns outputs by name for inputs by name and the names of the wanted outputs;
            called in threads.
        largest: largest number of samples of a batch; larger requests run alone.
        parallel: number of concurrent batches.
        waiting: number of waiting requests; the next one gets an ``EngineBusyError``.
        observe: receives the number of samples of each batch.
    """

    def __init__(
        self,
        compute: Callable[[Arrays, frozenset[str]], dict[str, Any]],
        *,
        largest: int,
        parallel: int,
        waiting: int,
        observe: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._compute, self._observe = compute, observe
        self._largest, self._limit, self._free = largest, waiting, parallel
        self._queue: deque[_Waiting] = deque()
        self._threads = ThreadPoolExecutor(parallel, thread_name_prefix="qatline-engine")
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, arrays: Arrays, wanted: Sequence[str]) -> dict[str, Any]:
        """Return the outputs of one request.

        Args:
            arrays: inputs by name, ``(samples, ...)``.
            wanted: names of the outputs.

        Raises:
            EngineBusyError: too many requests wait.
            QatlineError: see ``compute``.
        """
        if len(self._queue) >= self._limit:
            raise EngineBusyError(f"{self._limit} requests wait already. Try again later.")
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        samples = len(next(iter(arrays.values())))
        request = _Waiting(arrays=arrays, samples=samples, wanted=frozenset(wanted), answer=answer)
        self._queue.append(request)
        self._start()
        return await answer

    async def drain(self) -> None:
        """Wait for all requests, then end the threads."""
        while self._tasks:
            await asyncio.wait(self._tasks)
        self._threads.shutdown()

    def _start(self) -> None:
        while self._free and self._queue:
            self._free -= 1
            task = asyncio.get_running_loop().create_task(self._answer(self._batch()))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _batch(self) -> list[_Waiting]:
        batch = [self._queue.popleft()]
        samples = batch[0].samples
        while self._queue and self._queue[0].form == batch[0].form:
            samples += self._queue[0].samples
            if samples > self._largest:
                break
            batch.append(self._queue.popleft())
        return batch

    async def _answer(self, batch: list[_Waiting]) -> None:
        try:
            await self._compute_batch(batch)
        finally:
            self._free += 1
            self._start()

    async def _compute_batch(self, batch: list[_Waiting]) -> None:
        waiting = [each for each in batch if not each.answer.done()]  # others were cancelled
        if not waiting:
            return
        first = waiting[0].arrays
        arrays: Arrays = (
            {name: np.concatenate([each.arrays[name] for each in waiting]) for name in first}
            if len(waiting) > 1
            else first
        )
        wanted = frozenset[str]().union(*(each.wanted for each in waiting))
        self._observe(sum(each.samples for each in waiting))
        try:
            outputs = await asyncio.get_running_loop().run_in_executor(
                self._threads, self._compute, arrays, wanted
            )
        except Exception as error:  # noqa: BLE001  the error belongs to its request
            if len(waiting) > 1:  # one bad request must not fail its neighbours
                for each in waiting:
                    await self._compute_batch([each])
            elif not waiting[0].answer.done():
                waiting[0].answer.set_exception(error)
            return
        start = 0
        for each in waiting:
            rows = slice(start, start + each.samples)
            start += each.samples
            if not each.answer.done():
                each.answer.set_result({name: outputs[name][rows] for name in each.wanted})
