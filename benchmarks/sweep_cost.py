"""CPU time of a sweep on digits against that of its distinct steps.

    python benchmarks/sweep_cost.py -o FOLDER [--workers 1] [--kill-after 120]

Nine configs: three calibrators by three learning rates of QAT, on the digits config with a narrow
network and six epochs of the baseline. With ``--kill-after``, the sweep is
killed with SIGKILL after so many seconds and then repeated. Prints the CPU seconds of all processes
and those of the steps that were executed rather than reused, imports included, and their ratio.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

CONFIG = Path(__file__).parents[1] / "examples" / "digits.yaml"
_PR_SET_CHILD_SUBREAPER = 36


def main() -> None:
    """Run the sweep and print its cost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--workers", default="1")
    parser.add_argument("--kill-after", type=float)
    arguments = parser.parse_args()
    command = [sys.executable, "-m", "qatline.pipelines.cli.main", "sweep", str(CONFIG)]
    command += ["--set", "model.options.width=16", "--set", "training.epochs=6"]
    command += ["--workers", arguments.workers]
    command += ["--over", "quantization.calibrator=max,entropy,mse"]
    command += ["--over", "qat.learning_rate=2e-5,5e-5,1e-4"]
    command += ["--runs-dir", str(arguments.output / "runs"), "-o", str(arguments.output / "sweep")]
    # Orphans of a killed sweep become children of this process, so that their time counts.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    started = time.monotonic()
    if arguments.kill_after is not None:
        with subprocess.Popen(command) as sweep:
            time.sleep(arguments.kill_after)
            sweep.send_signal(signal.SIGKILL)
    subprocess.run(command, check=True)
    _reap()
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    total, steps, counts = usage.ru_utime + usage.ru_stime, 0.0, {"executed": 0, "reused": 0}
    executed: list[str] = []
    for events in arguments.output.glob("runs/*/events.jsonl"):
        for event in map(json.loads, events.read_text().splitlines()):
            if event["event"] == "step_finished":
                counts[event["status"]] += 1
                if event["status"] == "executed":
                    steps += event["cpu_seconds"]
                    executed.append(event["step"])
    print(f"{time.monotonic() - started:.0f} s, {arguments.workers} workers")
    print(f"steps: {counts}; train_baseline executed {executed.count('train_baseline')} times")
    print(f"CPU seconds: sweep {total:.1f}, steps {steps:.1f}, ratio {total / steps:.3f}")


def _reap() -> None:
    """Wait for orphans that have become children of this process."""
    while True:
        try:
            os.wait()
        except ChildProcessError:
            return


if __name__ == "__main__":
    main()
