"""Accuracy of a trained ResNet-20 on CIFAR-10 through the pipeline.

It is measured on photographs with both kinds of integers.

    uv run python benchmarks/cifar_accuracy.py --data cifar10/cifar10.npz --seeds 0 1 2

Each run is ``examples/cifar10_resnet20.yaml`` with its profile "adapted": the FP32 network is
fine-tuned on these images, quantized, calibrated, fine-tuned again with fake quantization, built
and evaluated on the test part; once with unsigned integers behind ReLUs, once with signed ones.
Since the fine-tuning after the quantization is training as well, the FP32 network is also trained
for as long, the same way (``qat.control``). Finished steps are reused, so the command can be
stopped and started again. The weights are looked for beside the data.
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
from applications_images import SHARED

CONFIG = Path(__file__).resolve().parents[1] / "examples" / "cifar10_resnet20.yaml"
VARIANTS = {
    "unsigned": ["quantization.unsigned=always", "qat.control=true"],
    "signed": ["quantization.unsigned=never"],
}
ROWS = {
    "fp32": ("unsigned", "fp32"),
    "fp32_longer": ("unsigned", "fp32_control"),
    "ptq_signed": ("signed", "ptq_engine"),
    "ptq_unsigned": ("unsigned", "ptq_engine"),
    "qat_signed": ("signed", "qat_engine"),
    "qat_unsigned": ("unsigned", "qat_engine"),
}
"""Row of the table -> the variant and the engine that it comes from."""


def run(seed: int, variant: str, arguments: argparse.Namespace) -> dict[str, float]:
    """Run a variant; return the network's and each engine's accuracy."""
    epochs = {
        "training.epochs": arguments.epochs,
        "qat.epochs": arguments.epochs,
        "data.path": arguments.data,
    }
    options = [f"{key}={value}" for key, value in epochs.items()]
    options.append(f"model.framework={arguments.framework}")
    options += VARIANTS[variant]
    command = [
        sys.executable,
        "-m",
        "qatline.pipelines.cli.main",
        "run",
        "--json",
        "--quiet",
        "--accept-rejected",
        "--seed",
        str(seed),
    ]
    command += [
        "--config",
        str(CONFIG),
        "--profile",
        "adapted",
        "--runs-dir",
        str(arguments.output),
    ]
    command += [text for option in options for text in ("--set", option)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"seed {seed}, {variant}: failed with exit code {done.returncode}")
    results: dict[str, Any] = json.loads(done.stdout)["results"]
    return {name: result["accuracy"] for name, result in results.items()}


def main() -> int:
    """Run the seeds and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=SHARED / "cifar10_jpeg_subset.npz")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--epochs", type=int, default=2, help="of each of the two fine-tunings")
    parser.add_argument("--framework", choices=["keras", "torch"], default="keras")
    parser.add_argument("--output", type=Path, default=Path("runs") / "cifar_accuracy")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    if not arguments.data.is_file():
        parser.error(
            f"expected the images in --data. Received: {arguments.data}, which is not there"
        )
    figures: dict[int, dict[str, float]] = {}
    print(f"{'seed':>6}" + "".join(f"{row:>14}" for row in ROWS), flush=True)
    for seed in arguments.seeds:
        found = {variant: run(seed, variant, arguments) for variant in VARIANTS}
        figures[seed] = {row: found[variant][engine] for row, (variant, engine) in ROWS.items()}
        print(f"{seed:>6}" + _cells(figures[seed]), flush=True)
    means = {row: mean(each[row] for each in figures.values()) for row in ROWS}
    print(f"{'mean':>6}" + _cells(means))
    if arguments.json:
        told = {"epochs": arguments.epochs, "framework": arguments.framework}
        record.write(arguments.json, {**told, "seeds": figures, "mean": means})
    return 0


def _cells(accuracies: dict[str, float]) -> str:
    return "".join(f"{accuracies[row]:>14.2%}" for row in ROWS)


if __name__ == "__main__":
    sys.exit(main())
