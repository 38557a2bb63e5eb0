"""Latency and throughput from individually timed requests."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain

from qat_lib.engines.values import Latency, Percentiles
from qat_lib.errors import ConfigError

LEAST_REQUESTS = 10
_WARM_REQUESTS = 3


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Timed requests: seconds of each, total seconds, and seconds on the device if known."""

    end_to_end: list[float]
    total: float
    compute: list[float] | None = None
    cuda_graph: bool = False
    clients: int = 1


def time_requests(
    send: Callable[[], object], seconds: float, *, least: int = LEAST_REQUESTS, clients: int = 1
) -> Measured:
    """Time sequential requests for ``seconds``, at least ``least`` per client."""
    clock = time.perf_counter
    begin = clock()
    end = begin + seconds

    def run(_: int) -> list[float]:
        durations: list[float] = []
        while (start := clock()) < end or len(durations) < least:
            send()
            durations.append(clock() - start)
        return durations

    if clients == 1:
        durations = run(0)
    else:
        # Threads suffice, since the backends release the GIL while they compute.
        with ThreadPoolExecutor(clients) as pool:
            durations = list(chain.from_iterable(pool.map(run, range(clients))))
    return Measured(end_to_end=durations, total=clock() - begin, clients=clients)


def warm_up(send: Callable[[], object], seconds: float, least: int = LEAST_REQUESTS) -> None:
    """Send requests for ``seconds``: at least three, or ``least`` if that is lower."""
    end = time.perf_counter() + seconds
    for _ in range(min(_WARM_REQUESTS, least)):
        send()
    while time.perf_counter() < end:
        send()


def summarize_times(batch_size: int, parts: Sequence[Measured]) -> Latency:
    """Return the latency over all requests of ``parts``."""
    durations: list[float] = []
    compute: list[float] = []
    for part in parts:
        durations += part.end_to_end
        compute += part.compute or ()
    return Latency(
        batch_size=batch_size,
        iterations=len(durations),
        end_to_end=Percentiles.of(durations),
        throughput=batch_size * len(durations) / sum(part.total for part in parts),
        compute=Percentiles.of(compute) if compute else None,
        cuda_graph=any(part.cuda_graph for part in parts),
        clients=max(part.clients for part in parts),
    )


def check_arguments(batch_size: int, seconds: float) -> None:
    """Check the arguments of a benchmark.

    Raises:
        ConfigError: ``seconds`` or ``batch_size`` is not positive.
    """
    if seconds <= 0 or batch_size < 1:
        raise ConfigError(
            f"A benchmark needs seconds > 0 and batch_size >= 1. Received: {seconds}, {batch_size}."
        )
