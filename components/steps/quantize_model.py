"""Step quantize_model: place Q/DQ and calibrate."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from qat_lib.lockstep.bias import RoundingReport
from qatline.components.artifacts import Baseline, Dataset, Quantized
from qatline.components.artifacts.models import LayerCost, LayerCosts
from qatline.components.settings import EngineSettings, ExportSettings, QuantizationSettings
from qatline.components.support.events import Progress

# Number of samples for measuring the costs of layers.
_DIAGNOSED = 16


def quantize_model_settings(sections: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that affect the result.

    Of ``export`` and ``engine`` these are the settings that determine the target.
    """
    from qatline.components.export.choice import target_dependencies

    return {**sections, **target_dependencies(sections["export"], sections["engine"])}


def quantize_model_step(
    dataset: Path,
    baseline: Path,
    out: Path,
    *,
    quantization: QuantizationSettings,
    export: ExportSettings,
    engine: EngineSettings,
    seed: int,
    progress: Progress,
) -> dict[str, float]:
    """Quantize the baseline and calibrate it on the calibration part.

    Args:
        dataset: directory of the prepared data.
        baseline: directory of the FP32 baseline.
        out: existing empty directory; receives the model, plan.json, spec.json, ranges.json,
            metrics.json.
        quantization: mode, spec, cases, calibrator, range policy, sign of the integers, bias
            correction.
        export: only `target` is used; it determines signedness.
        engine: only `backend` and `cpu` are used; they determine target and integers.
        seed: seed of all random generators; the step itself draws no numbers.
        progress: receives every calibration batch.

    Returns:
        Primary metric of the calibrated model on the validation and test parts, numbers of quantizers,
        skipped layers and corrected biases, and whether channels were equalized.

    Raises:
        SpecError, ConfigError: the spec or a case is wrong.
        CalibrationError: the calibration part is unusable.
    """
    import math

    from qat_lib.ptq import PtqRecipe
    from qatline.components.data.reader import numpy_batches
    from qatline.components.export.choice import choose_integers
    from qatline.components.tasks import open_task
    from qatline.components.training.framework import framework_of
    from qatline.components.training.prepared_data import measure_model
    from qatline.components.training.quantization_choice import open_cases, read_spec
    from qatline.components.training.ranges import describe_ranges

    framework = framework_of(Baseline(baseline))
    framework.make_deterministic(seed)
    recipe = PtqRecipe(
        mode=quantization.mode,
        cases=open_cases(quantization, open_task(Dataset(dataset).info())),
        calibrator=quantization.calibrator,
        percentile=quantization.percentile,
        equalize=quantization.equalize,
        bias_correction=quantization.bias_correction,
        rounding=quantization.rounding,
        **choose_integers(quantization, export, engine),
    )
    network = framework.load(Baseline(baseline))

    def calibration_data() -> Iterable[Any]:
        batches = numpy_batches(dataset, "calibration", quantization.batch_size)
        return framework.inputs(network, batches)

    spec, policy = read_spec(quantization), quantization.range_policy
    # The plan follows the preparation: an equalized copy may have other layers.
    choice = recipe.prepare(framework.bare(network), calibration_data(), spec)
    plan = recipe.plan(choice.model, spec).with_range_policy(policy)
    quantized = recipe.apply(choice.model, plan)
    batches = math.ceil(Dataset(dataset).info().splits["calibration"] / quantization.batch_size)
    report = recipe.calibrate(
        quantized,
        calibration_data(),
        freeze=policy == "frozen",
        on_batch=lambda done: progress.update("calibration", done, batches),
    )
    # Before the correction, whose shifts would also change the float reference of the diagnosis.
    costs = None
    if quantization.diagnose_layers and framework.traits.supports("diagnosis"):
        costs = layer_costs(quantized, calibration_data(), quantization.diagnose_layers)
    phase = "rounding" if quantization.rounding == "adaround" else "bias correction"
    corrected = recipe.correct(
        quantized,
        calibration_data(),
        on_layer=lambda done, of: progress.update(phase, done, of),
    )
    network = framework.with_bare(network, quantized)
    metrics = {
        **measure_model(framework, network, dataset),
        "quantizers": float(len(plan.quantizers)),
        "unsigned_quantizers": float(sum(entry.unsigned for entry in plan.quantizers)),
        "skipped_layers": float(len(plan.skipped)),
        "calibration_samples": float(report.samples),
        "corrected_biases": float(len(corrected.shifts)),
        "equalized": float(choice.applied),
    }
    if isinstance(corrected, RoundingReport):
        metrics["rounded_layers"] = float(len(corrected.errors))
    ptq = Quantized(out)
    framework.save(network, ptq)
    ptq.write_plan(plan)
    ptq.write_spec(spec.to_list() if spec else [])
    ptq.write_ranges(describe_ranges(framework.quantizers(network), plan, report))
    if costs is not None:
        ptq.write_costs(costs)
    ptq.write_metrics(metrics)
    return metrics


def layer_costs(model: Any, data: Iterable[Any], layers: int) -> LayerCosts:
    """Return the INT8 costs of the noisiest layers of a quantized model."""
    import qat_lib

    found = qat_lib.diagnose(model, data, samples=_DIAGNOSED, layers=layers)
    causes: dict[str, str] = {}
    for finding in found.findings:
        for reader in () if finding.minor else finding.change:
            causes.setdefault(reader.name, f"{finding.cause} of {finding.layer}")
    rows = [
        LayerCost(
            layer=row.layer,
            weights=None if row.weights is None else row.weights.only,
            inputs=None if row.inputs is None else row.inputs.only,
            cause=causes.get(row.layer, ""),
        )
        for row in found.layers
    ]
    return LayerCosts(measure=found.measure, total=found.total, samples=found.samples, layers=rows)
