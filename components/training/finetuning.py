"""Quantization-aware fine-tuning, shared by the pipeline's step and the command line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from qatline.components.artifacts.models import Epoch
from qatline.components.settings import QATSettings
from qatline.components.support.events import Progress
from qatline.components.training.checkpoints import Checkpoint
from qatline.components.training.framework import (
    Framework,
    Oscillation,
    TrainingData,
    choose_framework,
)


def finetune(
    model: Any,
    data: Path | TrainingData,
    qat: QATSettings,
    *,
    seed: int,
    progress: Progress,
    teacher: Any = None,
    framework: Framework | None = None,
    oscillation: Oscillation | None = None,
    checkpoint: Checkpoint | None = None,
) -> list[Epoch]:
    """Fine-tune a calibrated model in place and keep the best epoch's weights.

    For reproducible results, call the framework's ``make_deterministic`` before loading the model:
    layers such as Dropout draw their seeds at that time.

    An epoch replaces the initial model only if its gain exceeds the noise; see
    ``qatline.components.training.history.is_clear_gain``.

    Args:
        model: a quantized and calibrated classifier.
        data: directory of the prepared data, or another source of batches.
        qat: epochs, batch size, optimizer, learning rate, weight of the teacher's outputs.
        seed: seed of shuffling and augmentation.
        progress: receives every batch.
        teacher: floating-point model that provides soft targets, or None.
        framework: framework of the model; None for Keras.
        oscillation: receives the shares of oscillating weights, or None.
        checkpoint: checkpoint of the training; None for none.

    Returns:
        One record per epoch, starting with epoch 0, the initial model.
    """
    chosen = framework or choose_framework("keras")
    return chosen.fit(
        model,
        data,
        qat,
        seed=seed,
        progress=progress,
        keep_best=True,
        teacher=teacher,
        distillation=qat.distillation,
        oscillation=oscillation,
        checkpoint=checkpoint,
    )


def final_epoch(history: Sequence[Epoch]) -> Epoch:
    """Return the epoch of the kept weights; epoch 0 is the model before training."""
    return next(epoch for epoch in history if epoch.kept)
