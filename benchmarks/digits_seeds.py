"""The main job's INT8 accuracy against FP32 over several seeds.

Does INT8 cost anything on the digits?

    uv run python benchmarks/digits_seeds.py
    uv run python benchmarks/digits_seeds.py --seeds 0 1 2 3 4 --set qat.learning_rate=1e-4 --json seeds.json

Each seed is a whole run of ``qatline run`` with the default config: another split, other initial
weights, another order. The claim that is checked: the QAT INT8 engine is at least as accurate as
FP32 Keras on average, and never more than one percentage point below it. Finished runs are reused,
so the command can be stopped and started again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from statistics import mean
from typing import Any

import record

ROWS = ("fp32", "fp32_engine", "ptq_engine", "qat_engine")
WORST_DROP = 0.01


def run_seed(seed: int, output: Path, overrides: list[str]) -> dict[str, Any]:
    """Run the main job with one seed; return its JSON result.

    It is the object that ``qatline run --json`` prints.
    """
    command = [
        sys.executable,
        "-m",
        "qatline.pipelines.cli.main",
        "run",
        "--json",
        "--quiet",
        "--seed",
        str(seed),
    ]
    command += [
        "--runs-dir",
        str(output),
        *(text for override in overrides for text in ("--set", override)),
    ]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"seed {seed} failed with exit code {done.returncode}")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def main() -> int:
    """Run the seeds and print the table; end with 1 on failure.

    The run fails if the claim does not hold.
    """
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--output", type=Path, default=Path("runs") / "digits_seeds")
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    figures: dict[int, dict[str, float]] = {}
    print(
        f"{'seed':>6}" + "".join(f"{row:>14}" for row in ROWS) + f"{'QAT - FP32':>14}", flush=True
    )
    for seed in arguments.seeds:
        results = run_seed(seed, arguments.output, arguments.overrides)["results"]
        figures[seed] = {row: results[row]["quality"]["accuracy"] for row in ROWS}
        print(f"{seed:>6}" + _cells(figures[seed]), flush=True)
    means = {row: mean(each[row] for each in figures.values()) for row in ROWS}
    print(f"{'mean':>6}" + _cells(means))
    changes = [each["qat_engine"] - each["fp32"] for each in figures.values()]
    holds = mean(changes) >= 0 and min(changes) >= -WORST_DROP
    verdict = "holds" if holds else "DOES NOT HOLD"
    print(f"QAT against FP32: mean {mean(changes):+.2%}, worst {min(changes):+.2%}: {verdict}")
    if arguments.json:
        content = {
            "seeds": figures,
            "mean": means,
            "mean_change": mean(changes),
            "worst_change": min(changes),
        }
        record.write(arguments.json, content)
    return 0 if holds else 1


def _cells(accuracies: dict[str, float]) -> str:
    change = accuracies["qat_engine"] - accuracies["fp32"]
    return "".join(f"{accuracies[row]:>14.2%}" for row in ROWS) + f"{change:>+14.2%}"


if __name__ == "__main__":
    sys.exit(main())
