"""Memory of the steps on data sets of different sizes.

    nice .venv/bin/python benchmarks/data_memory.py [--samples 300] [--factor 10] \
        [--json benchmarks/results/data_memory.json]

Synthetic images with masks go from a generator to an evaluated engine, once with ``--samples`` and
once with ``--factor`` times as many. Each step runs in its own process; its anonymous memory
(``RssAnon`` of ``/proc``, without pages of files that the kernel can drop) is read every 10 ms.

The limit of the control group is recorded. It bounds all memory, pages of files included: start the
program in a group with less memory than data.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import record

from qatline.components.settings import (
    DataSettings,
    EngineSettings,
    ExportSettings,
    ModelSettings,
    QATSettings,
    QuantizationSettings,
    TrainingSettings,
)
from qatline.components.support.events import NullProgress

SIZE = 256
CLASSES = 3
_BATCH = 32
STEPS = (
    "prepare_data",
    "train_baseline",
    "quantize_model",
    "finetune_qat",
    "export_onnx",
    "build_engine",
    "evaluate",
)


def scenes(samples: int = 0) -> Any:
    """Return batches of random images, whose masks follow from the first channel."""

    def batches() -> Iterator[Any]:
        generator = np.random.default_rng(0)
        for start in range(0, samples, _BATCH):
            count = min(_BATCH, samples - start)
            images = generator.integers(0, 256, (count, SIZE, SIZE, 3), np.uint8)
            yield images, (images[..., 0] // 86).astype(np.uint8)

    return batches()


def network(input_shape: tuple[int, ...], classes: int) -> Any:
    """Return a small network with a value per pixel and class."""
    import keras
    from keras import layers

    inputs = keras.Input(input_shape)
    x = inputs
    for strides in (4, 1):
        x = layers.Conv2D(8, 3, strides=strides, padding="same", use_bias=False)(x)
        x = layers.ReLU()(layers.BatchNormalization()(x))
    return keras.Model(inputs, layers.UpSampling2D(4)(layers.Conv2D(classes, 1)(x)))


def run_step(name: str, folder: Path, samples: int) -> None:
    """Run one step in this process."""
    from importlib import import_module

    sys.path.insert(0, str(Path(__file__).parent))
    step = getattr(import_module(f"qatline.components.steps.{name}"), f"{name}_step")
    places = {each: folder / each for each in STEPS}
    places[name].mkdir()
    engine = EngineSettings(backend="openvino", batch_size=8, benchmark_seconds=0.2)
    quantization = QuantizationSettings(batch_size=8)
    data, out = places["prepare_data"], places[name]
    baseline, ptq = places["train_baseline"], places["quantize_model"]
    qat, onnx = places["finetune_qat"], places["export_onnx"]
    common: dict[str, Any] = {"seed": 0, "progress": NullProgress()}
    if name == "prepare_data":
        reference, options = "data_memory:scenes", {"samples": samples}
        source = DataSettings(kind="python", name=reference, options=options, fingerprint="1")
        step(out, data=source, **common)
    elif name == "train_baseline":
        training = TrainingSettings(epochs=1, batch_size=16, augment="none")
        step(
            data, out, model=ModelSettings(name="data_memory:network"), training=training, **common
        )
    elif name == "quantize_model":
        step(
            data,
            baseline,
            out,
            quantization=quantization,
            export=ExportSettings(),
            engine=engine,
            **common,
        )
    elif name == "finetune_qat":
        step(data, baseline, ptq, out, qat=QATSettings(epochs=1, batch_size=16), **common)
    elif name == "export_onnx":
        del common["seed"]
        step(data, baseline, ptq, qat, out, export=ExportSettings(), engine=engine, **common)
    elif name == "build_engine":
        step(onnx, out, engine=engine, dataset=data, **common)
    else:
        step(data, baseline, qat, onnx, places["build_engine"], out, engine=engine, **common)


def measure_step(name: str, folder: Path, samples: int) -> tuple[float, float]:
    """Run one step in a process; return its peak of anonymous memory in MiB, and its seconds."""
    command = [sys.executable, __file__, "--step", name, "--folder", str(folder)]
    command += ["--samples", str(samples)]
    # Arenas of threads keep freed memory: few of them make runs comparable.
    environment = {**os.environ, "MALLOC_ARENA_MAX": "2", "TF_CPP_MIN_LOG_LEVEL": "3"}
    started, peak = time.monotonic(), 0
    with (folder / f"{name}.log").open("w+") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        while process.poll() is None:
            peak = max(peak, anonymous_bytes(process.pid))
            time.sleep(0.01)
        if process.returncode:
            log.seek(0)
            raise SystemExit(f"{name} failed on {samples} samples:\n{log.read()[-3000:]}")
    return peak / 2**20, time.monotonic() - started


def anonymous_bytes(pid: int) -> int:
    """Return the resident anonymous memory of a process."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) << 10


def group_limit() -> int | None:
    """Return the MiB of memory that the control group of this process may use; None for all."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        for file in (f"memory{path}/memory.limit_in_bytes", f"{path[1:]}/memory.max"):
            place = Path("/sys/fs/cgroup", file)
            if controllers in ("memory", "") and place.is_file():
                text = place.read_text().strip()
                # Without a limit, version 2 has "max", and version 1 the largest number.
                return int(text) >> 20 if text.isdigit() and int(text) < 1 << 60 else None
    return None


def main() -> None:
    """Measure all steps and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=300)
    parser.add_argument("--factor", type=int, default=10)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--step", choices=STEPS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.step:
        run_step(given.step, given.folder, given.samples)
        return
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        folders = {count: Path(scratch) / str(count) for count in (1, given.factor)}
        for folder in folders.values():
            folder.mkdir()
        for name in STEPS:
            row: dict[str, Any] = {"step": name}
            for times, folder in folders.items():
                peak, seconds = measure_step(name, folder, given.samples * times)
                row |= {f"mib_{times}": round(peak, 1), f"seconds_{times}": round(seconds, 1)}
            row["growth_mib"] = round(row[f"mib_{given.factor}"] - row["mib_1"], 1)
            rows.append(row)
            print(row, flush=True)
        data = sum(path.stat().st_size for path in folders[given.factor].rglob("prepare_data/*"))
    figures = {
        "samples": given.samples,
        "factor": given.factor,
        "data_mib": round(data / 2**20, 1),
        "group_mib": group_limit(),
        "steps": rows,
    }
    print(figures)
    if given.json:
        record.write(given.json, figures)


if __name__ == "__main__":
    main()
