"""Step finetune_qat: quantization-aware fine-tuning of the calibrated model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qatline.components.artifacts import Baseline, Dataset, FineTuned, Quantized
from qatline.components.artifacts.models import TEST
from qatline.components.settings import GateSettings, QATSettings, RetrainSettings
from qatline.components.support.events import Progress

_GATE = GateSettings()
_ALWAYS = RetrainSettings()


def finetune_qat_step(
    dataset: Path,
    baseline: Path,
    ptq: Path,
    out: Path,
    *,
    qat: QATSettings,
    seed: int,
    progress: Progress,
    gate: GateSettings = _GATE,
    retrain: RetrainSettings = _ALWAYS,
    checkpoints: Path | None = None,
) -> dict[str, float]:
    """Fine-tune the calibrated model.

    The best epoch is kept only if it is significantly better than the calibrated model.

    Args:
        dataset: directory of the prepared data.
        baseline: directory of the FP32 baseline, for the comparison and as the teacher of the
            distillation.
        ptq: directory of the quantized and calibrated model.
        out: existing empty directory; receives the model, plan.json, ranges.json, history.json,
            metrics.json, predictions.npy; ``control`` receives those of the control, if any.
        qat: epochs, learning rate, teacher and further settings.
        seed: seed of shuffling and augmentation.
        progress: receives every batch.
        gate: primary metric required of the calibrated model to skip fine-tuning.
        retrain: whether fine-tuning may be skipped.
        checkpoints: folder for the state of the trainings; None for none.

    Returns:
        Primary metric on the validation and test parts, its change relative to the baseline (and to the
        control, if any), and the epoch of the kept weights (0: the calibrated model, see
        ``qatline.components.training.history.is_clear_gain``).
    """
    from qatline.components.evaluation.gate import ptq_suffices
    from qatline.components.tasks import open_task
    from qatline.components.training.checkpoints import open_checkpoint
    from qatline.components.training.control import choose_teacher, train_control
    from qatline.components.training.finetuning import final_epoch, finetune
    from qatline.components.training.framework import Oscillation, framework_of
    from qatline.components.training.prepared_data import measure_model
    from qatline.components.training.ranges import describe_ranges, with_oscillation

    reference, calibrated, tuned = Baseline(baseline), Quantized(ptq), FineTuned(out)
    task = open_task(Dataset(dataset).info())
    metric = task.primary
    if retrain.qat == "auto" and (reason := ptq_suffices(reference, calibrated, metric, gate)):
        progress.warn(f"fine-tuning is skipped: {reason}")
        qat = qat.model_copy(update={"epochs": 0})
    if qat.augment is None:
        qat = qat.model_copy(update={"augment": reference.info().augment})
    if qat.distillation and not task.distills:
        progress.warn("the task has no soft targets: fine-tuning uses the targets alone")
        qat = qat.model_copy(update={"distillation": 0.0})
    framework = framework_of(calibrated)
    control = None
    if qat.trains_control:
        control = train_control(
            framework,
            reference,
            dataset,
            tuned,
            qat,
            seed=seed,
            progress=progress,
            checkpoint=open_checkpoint(
                checkpoints, "control", qat.checkpoint_epochs, progress.warn
            ),
        )
    # Again, independent of the control: the result must not depend on a preceding training.
    framework.make_deterministic(seed)
    network = framework.load(calibrated)
    plan = calibrated.plan()
    oscillation = Oscillation()
    history = finetune(
        network,
        dataset,
        qat,
        seed=seed,
        progress=progress,
        teacher=choose_teacher(framework, reference, control, qat),
        framework=framework,
        oscillation=oscillation,
        checkpoint=open_checkpoint(checkpoints, "qat", qat.checkpoint_epochs, progress.warn),
    )
    metrics = {
        **measure_model(framework, network, dataset, keep=tuned),
        "kept_epoch": final_epoch(history).epoch,
    }
    name = f"{TEST}_{metric.name}"
    value = metrics[name]
    if (before := reference.test_value(metric.name)) is not None:
        metrics[f"{name}_change"] = value - before
    if control is not None and (longer := tuned.control().test_value(metric.name)) is not None:
        metrics[f"control_{name}"] = longer
        metrics[f"{name}_change_from_control"] = value - longer
    framework.save(network, tuned)
    calibrated.copy_plan(tuned)
    ranges = describe_ranges(framework.quantizers(network), plan)
    tuned.write_ranges(with_oscillation(ranges, oscillation))
    tuned.write_history(history)
    tuned.write_metrics(metrics)
    return metrics


def finetune_qat_settings(sections: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that affect the result; of the gate only the bound for skipping."""
    if sections["retrain"].qat != "auto":
        return {**sections, "gate": _GATE, "retrain": _ALWAYS}
    bounds = sections["gate"]
    gate = GateSettings(max_drop=bounds.max_drop, max_relative_drop=bounds.max_relative_drop)
    return {**sections, "gate": gate, "retrain": RetrainSettings(qat="auto")}
