"""Cost of inference of a quantized Keras model, and which quantizers it comes from.

The FP32 model and the quantized one take turns in one process, the quantized one with all its
quantizers, with the weights folded (``qat_lib.folded_weights``), and with a kind of quantizers or
all of them off. A ratio is that of neighbouring turns' CPU time.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qat_step import NETWORKS, build, quantized, quartiles

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

WAYS = ("quantized", "folded", "no weights", "no activations", "none")
"""How the quantized model runs; in the last three a kind of quantizers, or all, are off."""


def main() -> None:
    """Measure one network and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", default="mobilenetv2", choices=list(NETWORKS))
    parser.add_argument("--batch-sizes", nargs="+", type=int, default=[16, 32])
    parser.add_argument("--cores", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--calls", type=int, default=5, help="Calls in a turn. Default: 5.")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = []
    for cores in arguments.cores:
        for row in in_process(cores, arguments):
            rows.append(row)
            sys.stdout.write(f"{_line(row)}\n")
            sys.stdout.flush()
    if arguments.json:
        import record

        figures = {"network": arguments.network, "rounds": arguments.rounds, "rows": rows}
        record.write(arguments.json, figures)


def in_process(cores: int, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the rows of a process that has so many cores, one a batch size."""
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    allowed = sorted(os.sched_getaffinity(0))
    if not 1 <= cores <= len(allowed):
        raise SystemExit(f"--cores {cores}: expected 1 to {len(allowed)}, as many as are allowed.")
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(measure, allowed[:cores], arguments).result()


def measure(cores: list[int], arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Return a row for each batch size."""
    os.sched_setaffinity(0, cores)  # before TensorFlow counts them
    import numpy as np
    import tensorflow as tf

    side = NETWORKS[arguments.network]
    x = np.random.default_rng(0).normal(size=(max(arguments.batch_sizes), side, side, 3))
    images = x.astype("float32")
    model = build(arguments.network, side)
    other = quantized(build(arguments.network, side), "frozen", images[:16])
    calls = [tf.function(partial(each, training=False)) for each in (model, other)]
    rows = []
    for size in arguments.batch_sizes:
        batch = tf.constant(images[:size])
        times = turns(other, [partial(each, batch) for each in calls], arguments)
        ratios = {}
        for way in WAYS:
            pairs = zip(times[way], times["fp32"], strict=True)
            ratios[way] = quartiles([own / base for own, base in pairs])
        base = statistics.median(times["fp32"])
        rows.append({"cores": len(cores), "batch": size, "fp32_ms": 1e3 * base, "ratios": ratios})
    return rows


def turns(
    model: Any, calls: Sequence[Callable[[], Any]], arguments: argparse.Namespace
) -> dict[str, list[float]]:
    """Return CPU seconds of a call, in each round, of the FP32 model and of each way.

    ``calls`` run the FP32 model and the quantized ``model``.
    """
    from time import process_time

    found: dict[str, list[float]] = {way: [] for way in ("fp32", *WAYS)}
    for _ in range(arguments.rounds):
        for way, times in found.items():
            call = calls[way != "fp32"]
            with state(model, way):
                call()
                start = process_time()
                for _ in range(arguments.calls):
                    call()
                times.append((process_time() - start) / arguments.calls)
    return found


def state(model: Any, way: str) -> AbstractContextManager[None]:
    """Return the context in which the quantized model runs."""
    import qat_lib

    if way == "folded":
        return qat_lib.folded_weights(model)
    if way in ("fp32", "quantized"):
        return nullcontext()
    quantizers = qat_lib.model_quantizers(model).values()
    kinds = {"no weights": (True,), "no activations": (False,), "none": (True, False)}[way]
    return without([each for each in quantizers if each.of_weight in kinds])


@contextmanager
def without(quantizers: list[Any]) -> Iterator[None]:
    """Turn quantizers off within the block."""
    for each in quantizers:
        each.disable()
    try:
        yield
    finally:
        for each in quantizers:
            each.enable()


def _line(row: dict[str, Any]) -> str:
    cells = [
        f"{way} {median:.2f} ({a:.2f}-{b:.2f})" for way, (a, median, b) in row["ratios"].items()
    ]
    return (
        f"{row['cores']} cores, {row['batch']} images: {row['fp32_ms']:.1f} ms; {', '.join(cells)}"
    )


if __name__ == "__main__":
    main()
