"""CPU seconds that the pipeline adds to the work of its steps.

    nice .venv/bin/python benchmarks/step_overhead.py [--json benchmarks/results/step_overhead.json]

In a new folder, the main job with one epoch of each training:

- `step`: what a step's process needs beyond calling its function with TensorFlow imported: the
  interpreter, Kubeflow's executor, qatline, the keys, and the record in MLflow. Once with the record
  left to the launcher (as in `qatline run`), once written by the step itself (as on a cluster).
- `cached run`: a whole run whose every step is in the store, with all its processes.
- `help`: `qatline --help`, the median of five.

CPU seconds of processes are moved less than the clock by other work on the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import record

from qatline.components.step_table import STEP_BY_NAME, STEPS
from qatline.pipelines.run.folder import RunFolder, run_folders

CONFIG = ["training.epochs=1", "qat.epochs=1", "engine.benchmark_seconds=0.1"]
QATLINE = [sys.executable, "-m", "qatline.pipelines.cli.main"]
ROOT = Path(__file__).resolve().parents[1]


def cpu_of(command: list[str], **environment: str) -> tuple[float, str]:
    """Return the CPU seconds of a command and its children, and what it printed."""
    before = _children()
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}\n{done.stderr}")
    return _children() - before, done.stdout


def own_cpu() -> float:
    """Return the CPU seconds of this process and of those that it waited for."""
    return time.process_time() + _children()


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run_job(output: Path) -> float:
    """Run the job; return its CPU seconds."""
    settings = [part for text in CONFIG for part in ("--set", text)]
    return cpu_of(
        [*QATLINE, "run", "--accept-rejected", "-q", "--runs-dir", str(output), *settings]
    )[0]


def measure_step(name: str, folder: RunFolder, environment: Mapping[str, str]) -> dict[str, float]:
    """Execute a step in a process of its own; return its CPU seconds by part."""
    command = [sys.executable, __file__, "--step", name, "--run", str(folder.path)]
    total, said = cpu_of(command, _KFP_RUNTIME="true", **environment)
    parts = json.loads(said.splitlines()[-1])
    return {"function": parts["function"], "overhead": total - sum(parts.values())}


def execute_step(name: str, folder: RunFolder) -> None:
    """Be the process of a step; print the CPU seconds of imports and function."""

    used = {"tensorflow": 0.0, "function": 0.0}
    if STEP_BY_NAME[name].image == "train":
        before = time.process_time()

        used["tensorflow"] = time.process_time() - before
    from qatline.components.runtime import step as runner

    definition = runner.load_step(name)

    def timed(*arguments: Any, **named: Any) -> Mapping[str, float]:
        before = own_cpu()  # evaluate starts processes
        try:
            return definition.function(*arguments, **named)
        finally:
            used["function"] = own_cpu() - before

    runner.load_step = lambda _: replace(definition, function=timed)
    parameters = folder.config().pipeline_parameters()
    inputs = {}
    for artifact in definition.inputs:
        inputs[artifact] = str((folder.artifacts_dir / artifact).resolve())
    with tempfile.TemporaryDirectory() as output:
        runner.run_component(
            name,
            settings={section: parameters[section] for section in definition.sections},
            seed=parameters["seed"],
            inputs=inputs,
            output=f"{output}/out",
        )
    sys.stdout.write("\n" + json.dumps(used) + "\n")


def measure_steps(folder: RunFolder) -> list[dict[str, Any]]:
    """Return the overhead of each step, recorded by the launcher and by itself."""
    from qatline.components.tracking.store import ensure_store

    rows = []
    with tempfile.TemporaryDirectory() as store:
        uri = f"sqlite:///{store}/mlflow.db"
        os.environ["MLFLOW_TRACKING_URI"] = uri
        os.environ["MLFLOW_EXPERIMENT_ID"] = ensure_store(uri, "overhead", f"file://{store}/files")
        for step in STEPS:
            launched = measure_step(step.name, folder, {"QATLINE_LAUNCHER_PID": str(os.getpid())})
            alone = measure_step(step.name, folder, {})
            rows.append(
                {
                    "step": step.name,
                    "function_seconds": round(alone["function"], 2),
                    "by_launcher_seconds": round(launched["overhead"], 2),
                    "by_itself_seconds": round(alone["overhead"], 2),
                }
            )
            print("  ".join(f"{key}={value}" for key, value in rows[-1].items()), flush=True)
    return rows


def main() -> None:
    """Measure, print, and write the JSON if asked to."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="file to write the figures to")
    parser.add_argument("--step", help=argparse.SUPPRESS)
    parser.add_argument("--run", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.step:
        execute_step(arguments.step, RunFolder(path=arguments.run))
        return
    with tempfile.TemporaryDirectory() as place:
        output = Path(place)
        first = run_job(output)
        cached = run_job(output)
        help_seconds = statistics.median(cpu_of([*QATLINE, "--help"])[0] for _ in range(5))
        print(
            f"first run={first:.2f}  cached run={cached:.2f}  help={help_seconds:.2f}", flush=True
        )
        rows = measure_steps(run_folders(output)[0])
    if arguments.json:
        seconds = {"first": round(first, 2), "cached": round(cached, 2)}
        record.write(
            arguments.json,
            {"runs_seconds": seconds, "help_seconds": round(help_seconds, 2), "steps": rows},
        )


if __name__ == "__main__":
    main()
