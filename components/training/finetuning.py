"""Quantization-aware fine-tuning, as the pipeline's step and the command line do it."""

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
    """Fine-tune a calibrated model in place; end with the best epoch's weights.

    For a result that can be repeated, call the framework's ``make_deterministic`` before the model is
    loaded: layers such as Dropout draw their seeds then.

    An epoch counts as better than the model as it came only if its gain is more than noise (see
    ``qatline.components.training.history.is_clear_gain``).

    Args:
        model: a quantized and calibrated classifier.
        data: directory of the prepared data, or another source of batches.
        qat: epochs, batch size, optimizer, rate, weight of the teacher's outputs.
        seed: of shuffling and augmentation.
        progress: told of every batch.
        teacher: the model in floating point whose outputs serve as soft targets, or None.
        framework: that of the model; None for Keras.
        oscillation: where to note which quantized weights oscillated, or None.
        checkpoint: where the state is kept; None for nowhere.

    Returns:
        One record an epoch, from epoch 0, the model as it came.
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
    """Return the epoch whose weights were kept; epoch 0 is before training."""
    return next(epoch for epoch in history if epoch.kept)
