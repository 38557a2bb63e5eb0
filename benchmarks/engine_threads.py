"""Fairness and throughput of one engine serving several threads.

Each thread sends requests one after the other. Turns with one thread and turns with all of them
alternate, so that whatever else the machine does meets both. Printed are the requests of each
thread, the longest that any of them took, and the throughput of all threads over that of one.

    python benchmarks/engine_threads.py [--backend openvino] [--threads 8] [--seconds 60] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import record
from reference_networks import RESNET50, ResidualNetwork, write_network

from qat_lib.engines import BuildSpec, Engine, RequestLimits, build_engine, load_engine

NETWORKS = {
    "small": ResidualNetwork(blocks=(1, 2, 2), widths=(16, 32, 64), stem=16, image=(3, 32, 32)),
    "resnet50": RESNET50,
}
TURNS = 6


@dataclass
class Turn:
    """One turn: requests per thread, longest request and total in seconds."""

    counts: list[int]
    longest: float
    seconds: float

    @property
    def throughput(self) -> float:
        """Requests per second, of all threads together."""
        return sum(self.counts) / self.seconds


def serve(engine: Engine, threads: int, seconds: float) -> Turn:
    """Send requests from ``threads`` threads for ``seconds``."""
    counts, longest = [0] * threads, [0.0] * threads
    batch = engine.random_batch(1)
    ready = threading.Barrier(threads)

    def send(index: int) -> None:
        ready.wait()
        end = time.perf_counter() + seconds
        while (start := time.perf_counter()) < end:
            engine.infer(batch)
            counts[index] += 1
            longest[index] = max(longest[index], time.perf_counter() - start)

    senders = [threading.Thread(target=send, args=(index,)) for index in range(threads)]
    began = time.perf_counter()
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()
    return Turn(counts, max(longest), time.perf_counter() - began)


def measure(engine: Engine, threads: int, seconds: float) -> dict[str, Any]:
    """Return ``seconds`` of figures with all threads and with one."""
    serve(engine, threads, 0.2)
    turns = [
        (serve(engine, 1, seconds / TURNS), serve(engine, threads, seconds / TURNS))
        for _ in range(TURNS)
    ]
    counts = [sum(column) for column in zip(*(many.counts for _, many in turns), strict=True)]
    ratios = sorted(many.throughput / one.throughput for one, many in turns)
    return {
        "threads": threads,
        "requests_of_each_thread": counts,
        "least_over_fair_share": round(min(counts) * threads / sum(counts), 3),
        "longest_request_ms": round(max(many.longest for _, many in turns) * 1e3, 2),
        "requests_per_second_of_one_thread": round(
            sum(one.throughput for one, _ in turns) / TURNS, 1
        ),
        "requests_per_second": round(sum(many.throughput for _, many in turns) / TURNS, 1),
        "throughput_over_one_thread": round(ratios[TURNS // 2], 3),
        "throughput_over_one_thread_by_turn": [round(ratio, 3) for ratio in ratios],
    }


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--backend", choices=("openvino", "onnxruntime", "tensorrt"), default="openvino"
    )
    parser.add_argument("--network", choices=tuple(NETWORKS), default="small")
    parser.add_argument("--threads", type=int, default=8, help="threads that send requests")
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="seconds with all threads, and again with one"
    )
    parser.add_argument(
        "--parallel", type=int, help="requests that the engine runs at once; default: the backend's"
    )
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="qatline-bench-") as directory:
        onnx = write_network(Path(directory) / "model.onnx", NETWORKS[options.network], "int8")
        artifact = build_engine(onnx, BuildSpec(backend=options.backend, max_batch_size=2))
        with load_engine(artifact.path, limits=RequestLimits(parallel=options.parallel)) as engine:
            figures = measure(engine, options.threads, options.seconds)
    figures = {"backend": options.backend, "network": options.network, **figures}
    print(json.dumps(figures, indent=1))
    if options.json:
        record.write(options.json, figures)


if __name__ == "__main__":
    main()
