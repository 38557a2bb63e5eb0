"""Trains a small network, as a process that may kill itself in the middle of an epoch.

``python -m tests.components.training.interrupted CASE FOLDER EPOCH``: in epoch ``EPOCH`` (0: never)
it ends by SIGKILL. Else ``kept.npz`` in the folder has the final variables and the history, and
``whole.npz`` those of the same training without checkpoints.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np

from qatline.components.data.labelled import Labelled
from qatline.components.settings import QATSettings, TrainingSettings
from qatline.components.support.events import NullProgress
from qatline.components.tasks import task_for
from qatline.components.training.array_data import ArrayData
from qatline.components.training.checkpoints import Checkpoint, Resumption
from qatline.components.training.framework import Oscillation

RECIPE = {"ema": 0.9, "freeze_batch_norm": 2, "freeze_ranges": 2, "freeze_oscillating": 0.02}
CASES: dict[str, dict[str, Any]] = {
    "baseline": {"baseline": True},
    "recipe": {"augment": "flip_crop", **RECIPE},
    "learned": {"policy": "learned", "distillation": 0.5, "reestimate_batch_norm": True, **RECIPE},
    "parts": {"accumulate_steps": 3, **RECIPE},
    "torch": {"augment": "flip_crop", **RECIPE},
    "torch-parts": {"accumulate_steps": 3, **RECIPE},
    "torch-learned": {"policy": "learned", "distillation": 0.5, "optimizer": "sgd", **RECIPE},
}
SPLIT = {"dropout": 0.0, "batch_size": 20}
SPLIT_CASES: dict[str, dict[str, Any]] = {
    "split": {"augment": "flip_crop", "distillation": 0.5, **SPLIT, **RECIPE},
    # Adam makes a difference of 1e-7 in a learned range one of 1e-2, with one worker too.
    "split-learned": {"policy": "learned", "optimizer": "sgd", "range_rate": 100, **SPLIT},
    "split-baseline": {"baseline": True, "optimizer": "sgd", **SPLIT},
}
"""For several workers: 101 samples leave a batch of one."""
SPEED = "images_per_second_per_worker"
EPOCHS, STEPS = 3, 7


def data() -> ArrayData:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(150, 8, 8, 3)).astype(np.float32)
    y = (x.mean((1, 2, 3)) > 0).astype(np.int64)
    return ArrayData(
        training=Labelled(x=x[:101], targets=y[:101]),
        validating=Labelled(x=x[101:], targets=y[101:]),
        task=task_for("classification", classes=["0", "1"]),
    )


class Killer(NullProgress):
    """Ends the process in the middle of an epoch."""

    def __init__(self, epoch: int) -> None:
        self._last = (epoch - 1) * STEPS + STEPS // 2

    def update(self, phase: str, current: int, total: int, **metrics: float) -> None:
        if self._last > 0 and current == self._last:
            os.kill(os.getpid(), signal.SIGKILL)


def keras_network(policy: str, dropout: float, *, quantized: bool) -> tuple[Any, Any]:
    """Return a network and the one in floating point."""
    import keras

    import qat_lib

    image = keras.Input((8, 8, 3))
    y = keras.layers.Conv2D(8, 3, use_bias=False, name="conv")(image)
    y = keras.layers.ReLU()(keras.layers.BatchNormalization(name="bn")(y))
    y = keras.layers.GlobalAveragePooling2D()(keras.layers.Dropout(dropout)(y))
    plain = keras.Model(image, keras.layers.Dense(2, name="logits")(y))
    if not quantized:
        return plain, plain
    plan = qat_lib.plan_quantization(plain).with_range_policy(policy)
    return qat_lib.apply_plan(plain, plan), plain


def torch_network(policy: str) -> tuple[Any, Any]:
    """Return a network and the one in floating point."""
    import torch
    from torch import nn

    import qat_lib.torch
    from qatline.components.artifacts.models import TorchRecipe
    from qatline.components.training.torch_network import TorchNetwork

    module = nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 2),
    )
    module.eval()
    example = torch.zeros(1, 3, 8, 8)
    plan = qat_lib.torch.plan_quantization(module, example_input=example)
    plan = plan.with_range_policy(policy)
    quantized = qat_lib.torch.apply_plan(module, plan, example_input=example)
    recipe = TorchRecipe(name="x:y", options={}, image_shape=(8, 8, 3), classes=2)
    made = [TorchNetwork(module=each, recipe=recipe) for each in (quantized, module)]
    return made[0], made[1]


def train(case: str, kept: Checkpoint | None, kill: int) -> dict[str, np.ndarray]:
    """Return final variables, history, and what weights did."""
    from qatline.components.training.framework import choose_framework

    asked = {"batch_size": 16, **(CASES | SPLIT_CASES)[case]}
    baseline, policy = asked.pop("baseline", False), asked.pop("policy", "ema")
    dropout = asked.pop("dropout", 0.2)
    of_torch = case.startswith("torch")
    framework = choose_framework("torch" if of_torch else "keras")
    framework.make_deterministic(5)
    if of_torch:
        model, teacher = torch_network(policy)
    else:
        model, teacher = keras_network(policy, dropout, quantized=not baseline)
    kind = TrainingSettings if baseline else QATSettings
    schedule = kind(epochs=EPOCHS, learning_rate=0.02, **asked)
    noted = Oscillation()
    rows = framework.fit(
        model,
        data(),
        schedule,
        seed=5,
        progress=Killer(kill),
        keep_best=not baseline,
        teacher=teacher,
        distillation=getattr(schedule, "distillation", 0.0),
        oscillation=None if baseline else noted,
        checkpoint=kept,
    )
    values = model.module.state_dict().values() if of_torch else model.variables
    found = {f"variable{place}": np.asarray(v) for place, v in enumerate(values)}
    for place, row in enumerate(rows):
        figures = row.model_dump(exclude_unset=True, exclude={"seconds", SPEED})
        found[f"row{place}"] = np.array(sorted(figures.items()), dtype=object).astype(str)
    found["oscillating"] = np.array(sorted(noted.oscillating.items())).astype(str)
    return found


def main(case: str, folder: Path, kill: int) -> None:
    """Train, from the checkpoint if there is one, and then without any; write both results."""
    kept = Checkpoint(folder=folder / "state", name="qat", every=1, warn=sys.exit)
    resumed = Resumption(kept, {}, EPOCHS).epoch
    np.savez(folder / "kept.npz", resumed=resumed, **train(case, kept, kill))
    np.savez(folder / "whole.npz", **train(case, None, 0))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
