"""Run networks of keras.applications and keras_hub through the whole library.

The case is TensorRTQDQCase. For each builder, with random weights: plan, apply, calibrate, all
quantizers off (bit-identical to the original), save and load, clone, one training step, export,
parity with ONNX Runtime, analysis. Detectors and segmenters are also built by OpenVINO.

    uv run python benchmarks/applications.py                      # all of them, two hours or so on two cores
    uv run python benchmarks/applications.py --only ResNet50 --only VGG16

Each network runs in a process of its own, so that memory stays bounded and a crash costs one row.
Results go to ``benchmarks/results/applications.json`` and ``.md``; a run with ``--only`` replaces
the rows that it computes.
"""

from __future__ import annotations

import argparse
import inspect
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from applications_case import Case, run_stages
from applications_hub import HUB, case_of
from applications_maps import MAPS, SIZES, map_case
from applications_maps import SAMPLES as FEW
from applications_table import problems, write_results

RESULTS = Path(__file__).resolve().parent / "results" / "applications.json"
LARGER = ("Inception", "Xception")
SAMPLES = 64


def image_size(name: str) -> int:
    """Return a network's image side, 64 or 96 pixels.

    It is 96 where the builder asks for 75 pixels or so. ``SIZES`` has exceptions.
    """
    if name in SIZES:
        return SIZES[name]
    return 96 if name.startswith(LARGER) else 64


def builders() -> dict[str, Callable[..., Any]]:
    """Return every builder in keras.applications, by name."""
    import keras

    return {
        name: value
        for name, value in vars(keras.applications).items()
        if callable(value) and "weights" in inspect.signature(value).parameters
    }


def networks() -> list[str]:
    """Return the names of all networks of the table."""
    return [*builders(), *HUB, *MAPS]


def run_case(name: str) -> dict[str, Any]:
    """Return the row of one network."""
    with tempfile.TemporaryDirectory() as folder:
        if name in HUB:
            case = case_of(name)(Path(folder), HUB[name], image_size(name), SAMPLES)
        elif name in MAPS:
            case = map_case(name)(Path(folder), MAPS[name], image_size(name), FEW[name])
        else:
            builder = builders()[name]
            case = Case(
                Path(folder),
                lambda s: builder(weights=None, input_shape=s),
                image_size(name),
                SAMPLES,
            )
        return {"name": name, **run_stages(case)}


def run_in_child(name: str, timeout: int) -> dict[str, Any]:
    """Return one network's row, computed in its own process."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [sys.executable, __file__, "--child", name, "--out", file.name]
        started = time.perf_counter()
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=timeout, check=False
            )
        except subprocess.TimeoutExpired:
            return {"name": name, "error": f"took longer than {timeout} s", "seconds": {}}
        text = Path(file.name).read_text()
        if not text:
            tail = " ".join(done.stderr.strip().splitlines()[-3:])
            return {
                "name": name,
                "error": f"the process ended with {done.returncode}: {tail}",
                "seconds": {},
            }
        return {**json.loads(text), "wall_seconds": round(time.perf_counter() - started, 1)}


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--only", action="append", help="a builder's name; may be given several times"
    )
    parser.add_argument(
        "--out", type=Path, default=RESULTS, help="JSON file; the Markdown goes beside it"
    )
    parser.add_argument("--timeout", type=int, default=3600, help="seconds for one network")
    parser.add_argument("--jobs", type=int, default=1, help="networks at a time")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        options.out.write_text(json.dumps(run_case(options.child)))
        return 0
    known = networks()
    wanted = options.only or known
    if unknown := sorted(set(wanted) - set(known)):
        parser.error(f"unknown builder {unknown[0]}; known: {', '.join(known)}")
    rows = (
        {row["name"]: row for row in json.loads(options.out.read_text())}
        if options.out.is_file()
        else {}
    )
    with ThreadPoolExecutor(options.jobs) as pool:
        running = {pool.submit(run_in_child, name, options.timeout): name for name in wanted}
        for done in as_completed(running):
            name = running[done]
            rows[name] = done.result()
            write_results([rows[n] for n in known if n in rows], options.out)
            print(
                f"{name}: {'; '.join(problems(rows[name])) or 'ok'} ({rows[name].get('wall_seconds')} s)",
                flush=True,
            )
    return int(any(problems(row) for row in rows.values()))


if __name__ == "__main__":
    raise SystemExit(main())
