"""Decision whether the calibrated model needs fine-tuning."""

from __future__ import annotations

from qatline.components.artifacts import Baseline, Quantized
from qatline.components.artifacts.metric import Metric
from qatline.components.evaluation.gate import drop_allowed
from qatline.components.settings import GateSettings


def ptq_suffices(
    baseline: Baseline, calibrated: Quantized, metric: Metric, gate: GateSettings
) -> str:
    """Return the reason for skipping fine-tuning; empty if fine-tuning is required.

    The test part is not used: the gate judges the engine on it later.

    Args:
        baseline: the FP32 model.
        calibrated: the calibrated model.
        metric: primary metric of the task.
        gate: settings with the maximum drop of the metric.
    """
    before, after = (each.validation_value(metric.name) for each in (baseline, calibrated))
    if before is None or after is None:
        return ""
    allowed, bound = drop_allowed(after, before, metric, gate)
    if not allowed:
        return ""
    return (
        f"the calibrated model has {metric.text(after)} on the validation part against "
        f"{metric.text(before)} in FP32; the gate allows {bound} FP32"
    )
