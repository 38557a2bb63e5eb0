"""Benchmark several engines in turns, for a fair comparison."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from math import ceil

from qat_lib.engines.engine import Batch, Engine
from qat_lib.engines.timing import LEAST_REQUESTS, Measured, check_arguments, summarize_times
from qat_lib.engines.values import Latency
from qat_lib.support.mappings import map_values

_ROUNDS = 8


def benchmark_together(
    engines: Mapping[str, Engine],
    *,
    batch_size: int,
    seconds: float,
    rounds: int = _ROUNDS,
    seed: int = 0,
) -> dict[str, Latency]:
    """Benchmark several engines in turns, under the same conditions.

    Args:
        engines: the engines by name.
        batch_size: samples in each request.
        seconds: time for each engine, over all its turns, with at least ten timed requests.
        rounds: turns of each engine.
        seed: seed of the random input.

    Raises:
        ConfigError: ``seconds`` or ``batch_size`` is not positive.
    """
    requests: dict[str, Batch] = {}
    parts: dict[str, list[Measured]] = {}
    for name, engine in engines.items():
        check_arguments(batch_size, seconds)
        requests[name] = engine.random_batch(batch_size, seed=seed)
        parts[name] = []
    least = ceil(LEAST_REQUESTS / rounds)
    for turn in range(rounds):
        # Alternating order, so that no engine always runs after the same neighbour.
        for name in list(engines)[:: 1 if turn % 2 else -1]:
            part = engines[name].measure(requests[name], seconds=seconds / rounds, least=least)
            parts[name].append(part)
    return map_values(partial(summarize_times, batch_size), parts)
