"""CPU seconds of qatline's training loop against ``model.fit``, on the same model and data.

Both train a small quantized network, where what a loop adds to a step shows most, in turns of ten
epochs after a first one that traces. The median ratio is printed; then, for two networks, what a
checkpoint costs: its bytes, and the CPU seconds of writing one beside those of a step.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import qat_step

import qat_lib
from qatline.components.data.labelled import Labelled
from qatline.components.tasks import task_for
from qatline.components.tasks.keras_losses import CrossEntropy
from qatline.components.training import fitting
from qatline.components.training.array_data import ArrayData
from qatline.components.training.checkpoints import Checkpoint
from qatline.components.training.keras_loop import KerasLoop, batch_sizes

SAMPLES, BATCH_SIZE, EPOCHS = 101, 16, 10
SCORE = CrossEntropy(2, 0.0, probabilities=False).score


def main() -> None:
    """Train with both in turns and print the median ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    data = training_data()
    fitted, looped = network(), network()
    loop = KerasLoop(looped, SCORE, [])

    def run_fit(epochs: int) -> None:
        fitted.fit(data, epochs=epochs, verbose=0, shuffle=False)

    def run_loop(epochs: int) -> None:
        loop.run(data, batch_sizes(SAMPLES, BATCH_SIZE), epochs)

    run_fit(1)
    run_loop(1)
    ratios = []
    for _ in range(rounds):
        reference = cpu_seconds(run_fit)
        ratios.append(cpu_seconds(run_loop) / reference)
    low, middle, high = statistics.quantiles(ratios, n=4)
    sys.stdout.write(f"loop / fit: {middle:.3f} ({low:.3f} to {high:.3f}), {rounds} rounds\n")
    for name, side in (("resnet20", 32), ("mobilenetv2", 96)):
        sys.stdout.write(f"{name}: {checkpoint_cost(name, side)}\n")


def checkpoint_cost(name: str, side: int) -> str:
    """Return bytes and median CPU seconds of a checkpoint after a step, as text."""
    model = qat_lib.quantize_model(qat_step.build(name, side), custom_qdq_cases="auto")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-5), loss)
    x = np.random.default_rng(0).random((BATCH_SIZE, side, side, 3), dtype=np.float32)
    data = [x, np.arange(BATCH_SIZE) % 10]
    model.train_on_batch(*data)
    part = fitting.CompiledModel(model)
    with tempfile.TemporaryDirectory() as folder:
        kept = Checkpoint(folder=Path(folder), name="qat", every=1, warn=sys.exit)
        steps, writes = [], []
        for _ in range(9):
            start = time.process_time()
            model.train_on_batch(*data)
            middle = time.process_time()
            kept.write({"model": part.get_state(), "epoch": 1})
            steps.append(middle - start)
            writes.append(time.process_time() - middle)
        mib = kept.path.stat().st_size / 2**20
    step, write = statistics.median(steps), statistics.median(writes)
    return f"checkpoint {mib:.1f} MiB, {write:.3f} s, a step of {BATCH_SIZE} images {step:.3f} s"


def network() -> Any:
    """Return a compiled quantized network of three layers."""
    fitting.make_deterministic(3)
    image = keras.Input((8, 8, 3))
    y = keras.layers.Conv2D(8, 3)(image)
    y = keras.layers.ReLU()(keras.layers.BatchNormalization()(y))
    y = keras.layers.GlobalAveragePooling2D()(y)
    model = qat_lib.quantize_model(keras.Model(image, keras.layers.Dense(2)(y)))
    accuracy = keras.metrics.MeanMetricWrapper(SCORE, name="accuracy")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss, metrics=[accuracy])
    return model


def training_data() -> Any:
    """Return batches of random images, cached."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(SAMPLES, 8, 8, 3)).astype(np.float32)
    rows = Labelled(x=x, targets=(x.mean((1, 2, 3)) > 0).astype(np.int64))
    data = ArrayData(
        training=rows, validating=rows, task=task_for("classification", classes=["0", "1"])
    )
    return data.train(BATCH_SIZE, shuffle_seed=5, augment="none").cache()


def cpu_seconds(run: Any) -> float:
    """Return the CPU seconds of EPOCHS epochs."""
    before = time.process_time()
    run(EPOCHS)
    return time.process_time() - before


if __name__ == "__main__":
    main()
