"""Overhead of ``Engine.infer`` over the backend's own API.

ResNet-50 in INT8 at batch 1 is measured, both in the same run. Requests alternate one by one
between ``Engine.infer`` and the backend's own call on the same engine file, so that whatever else
the machine does meets both. Printed are the ratios of the medians and, less touched by other load,
of the 10th percentiles; 1.00 means no cost at all.

    python benchmarks/engine_overhead.py [--backend openvino] [--requests 400] [--threads 0] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import record
from reference_networks import RESNET50, write_network

from qat_lib.engines import BuildSpec, Engine, build_engine, load_engine

LIMIT = 1.03


def own_call(engine: Engine, path: Path, backend: str) -> Callable[[Any], Any]:
    """Return the backend's documented plain Python call on an engine file."""
    if backend == "openvino":
        import openvino

        config = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
        if engine.manifest.spec["threads"]:
            config["INFERENCE_NUM_THREADS"] = engine.manifest.spec["threads"]
        request = (
            openvino.Core().import_model(path.read_bytes(), "CPU", config).create_infer_request()
        )
        return lambda batch: request.infer({0: batch}, share_inputs=True, share_outputs=False)
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = engine.manifest.spec["threads"]
    session = onnxruntime.InferenceSession(
        path.read_bytes(), options, providers=["CPUExecutionProvider"]
    )
    return lambda batch: session.run(None, {"input": batch})


def measure(backend: str, requests: int, threads: int, directory: Path) -> dict[str, Any]:
    """Return medians in milliseconds and the ratios."""
    onnx = write_network(directory / "resnet50.onnx", RESNET50, "int8")
    artifact = build_engine(onnx, BuildSpec(backend=backend, threads=threads, max_batch_size=1))  # type: ignore[arg-type]
    with load_engine(artifact.path) as engine:
        batch = engine.random_batch(1)["input"]
        calls = {"engine": engine.infer, "own": own_call(engine, artifact.path, backend)}
        times: dict[str, list[float]] = {name: [] for name in calls}
        for index in range(requests + 20):
            for name in list(calls)[:: 1 if index % 2 else -1]:
                start = time.perf_counter()
                calls[name](batch)
                if index >= 20:
                    times[name].append(time.perf_counter() - start)
    quick, medians = (
        {name: float(np.percentile(values, share)) * 1e3 for name, values in times.items()}
        for share in (10, 50)
    )
    return {
        "backend": backend,
        "version": artifact.manifest.backend_version,
        "requests": requests,
        "engine_ms": round(medians["engine"], 4),
        "own_ms": round(medians["own"], 4),
        "ratio": round(medians["engine"] / medians["own"], 4),
        "ratio_p10": round(quick["engine"] / quick["own"], 4),
        "limit": LIMIT,
    }


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backend", choices=("openvino", "onnxruntime"), default="openvino")
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="qatline-bench-") as directory:
        figures = measure(options.backend, options.requests, options.threads, Path(directory))
    print(json.dumps(figures, indent=1))
    if options.json:
        record.write(options.json, figures)


if __name__ == "__main__":
    main()
