"""Control experiment of QAT: the FP32 model with the same additional training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from qatline.components.artifacts import Baseline, FineTuned
from qatline.components.settings import QATSettings
from qatline.components.support.events import Progress
from qatline.components.training.checkpoints import Checkpoint
from qatline.components.training.finetuning import finetune
from qatline.components.training.framework import Framework
from qatline.components.training.prepared_data import measure_model


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
    """Continue the training of the baseline with the schedule of QAT, and write the result.

    Order, augmentation, schedule and selection of the epoch are those of QAT; there is no teacher.

    Args:
        framework: framework of the models.
        reference: directory of the baseline.
        dataset: directory of the prepared data.
        tuned: directory of QAT; the control is written to its folder ``control``.
        qat: settings of both trainings.
        seed: seed of shuffling and augmentation.
        progress: receives every batch.
        checkpoint: checkpoint of the training; None for none.

    Returns:
        The control.
    """
    control = tuned.control()
    control.path.mkdir()
    # Before the model is loaded: layers such as Dropout draw their seeds then.
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
    control.write_metrics(measure_model(framework, model, dataset, keep=control))
    framework.save(model, control)
    control.write_history(history)
    return model


def choose_teacher(
    framework: Framework, reference: Baseline, control: Any, qat: QATSettings
) -> Any:
    """Return the model that provides soft targets; None without distillation."""
    if not qat.distillation:
        return None
    return control if qat.teacher == "control" else framework.load(reference)
