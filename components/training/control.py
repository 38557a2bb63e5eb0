"""The control of QAT: the FP32 model trained for as long, the same way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from qatline.components.artifacts import Baseline, FineTuned
from qatline.components.artifacts.models import accuracies
from qatline.components.settings import QATSettings
from qatline.components.support.events import Progress
from qatline.components.training.checkpoints import Checkpoint
from qatline.components.training.finetuning import finetune
from qatline.components.training.framework import Framework
from qatline.components.training.prepared_data import (
    outputs_accuracy,
    predict_split,
    split_accuracy,
)


def train_control(
    framework: Framework,
    reference: Baseline,
    dataset: Path,
    tuned: FineTuned,
    qat: QATSettings,
    *,
    seed: int,
    progress: Progress,
    checkpoint: Checkpoint | None = None,
) -> Any:
    """Train the baseline on as QAT trains the quantized model, and write it.

    Order, augmentation, schedule and the choice of the epoch are those of QAT; there is no
    teacher.

    Args:
        framework: that of the models.
        reference: directory of the baseline.
        dataset: directory of the prepared data.
        tuned: directory of QAT; the control goes into its folder ``control``.
        qat: the settings of both.
        seed: of shuffling and augmentation.
        progress: told of every batch.
        checkpoint: where the training's state is kept; None for nowhere.

    Returns:
        The control.
    """
    control = tuned.control()
    control.path.mkdir()
    framework.make_deterministic(seed)
    model = framework.load(reference)
    history = finetune(
        model,
        dataset,
        qat,
        seed=seed,
        progress=progress,
        framework=framework,
        checkpoint=checkpoint,
    )
    outputs = predict_split(framework, model, dataset, "test")
    framework.save(model, control)
    control.write_predictions(outputs)
    control.write_history(history)
    control.write_metrics(
        accuracies(
            test=outputs_accuracy(outputs, dataset, "test"),
            validation=split_accuracy(framework, model, dataset, "validation"),
        )
    )
    return model


def choose_teacher(
    framework: Framework, reference: Baseline, control: Any, qat: QATSettings
) -> Any:
    """Return the model whose outputs are soft targets; None without distillation."""
    if not qat.distillation:
        return None
    return control if qat.teacher == "control" else framework.load(reference)
