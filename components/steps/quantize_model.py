"""Step quantize_model: place Q/DQ and calibrate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from qatline.components.artifacts import Baseline, Dataset, Quantized
from qatline.components.artifacts.models import accuracies
from qatline.components.settings import EngineSettings, ExportSettings, QuantizationSettings
from qatline.components.support.events import Progress


def quantize_model_settings(sections: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that the result depends on.

    Of ``export`` and ``engine`` these are the ones that decide about the target.
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
        out: existing empty directory; gets the model, plan.json, spec.json, ranges.json,
            metrics.json.
        quantization: mode, spec, cases, calibrator, range policy, sign of the integers, bias
            correction.
        export: only `target` is used; it determines signedness.
        engine: only `backend` and `cpu` are used; they determine target and integers.
        seed: of anything random; the step itself draws nothing.
        progress: told of every calibration batch.

    Returns:
        Accuracy of the calibrated model on the validation and test parts, number of quantizers,
        skipped layers and corrected biases, whether channels were equalized.

    Raises:
        SpecError, ConfigError: the spec or a case is wrong.
        CalibrationError: the calibration part is unusable.
    """
    import math

    from qatline.components.data.reader import numpy_batches
    from qatline.components.export.choice import choose_integers
    from qatline.components.training.framework import framework_of
    from qatline.components.training.prepared_data import split_accuracy
    from qatline.components.training.quantization_choice import open_cases, read_spec
    from qatline.components.training.ranges import describe_ranges

    framework = framework_of(Baseline(baseline))
    framework.make_deterministic(seed)
    integers = choose_integers(quantization, export, engine)
    network = framework.load(Baseline(baseline))

    def calibration_data() -> Iterator[Any]:
        return numpy_batches(dataset, "calibration", quantization.batch_size)

    spec = read_spec(quantization)

    def planned(candidate: Any) -> Any:
        plan = framework.plan(
            candidate, quantization.mode, spec, open_cases(quantization), **integers
        )
        return plan.with_range_policy(quantization.range_policy)

    def tried(candidate: Any, batches: Any) -> Any:
        quantized = framework.apply(candidate, planned(candidate))
        framework.calibrate(
            quantized,
            batches,
            quantization.calibrator,
            percentile=quantization.percentile,
            freeze=True,
            on_batch=lambda _: None,
        )
        if quantization.bias_correction:
            framework.correct_bias(quantized, batches, on_layer=lambda *_: None)
        return quantized

    network, is_equalized = framework.equalize(
        network, quantization.equalize, calibration_data(), tried
    )
    plan = planned(network)
    quantized = framework.apply(network, plan)
    batches = math.ceil(Dataset(dataset).info().splits["calibration"] / quantization.batch_size)
    report = framework.calibrate(
        quantized,
        calibration_data(),
        quantization.calibrator,
        percentile=quantization.percentile,
        freeze=quantization.range_policy == "frozen",
        on_batch=lambda done: progress.update("calibration", done, batches),
    )
    costs = None
    if quantization.diagnose_layers:
        costs = framework.diagnose(quantized, calibration_data(), quantization.diagnose_layers)
    corrected = rounded = 0
    if quantization.rounding == "adaround":
        rounded, corrected = framework.adaround(
            quantized,
            calibration_data(),
            correct=quantization.bias_correction,
            on_layer=lambda done, of: progress.update("rounding", done, of),
        )
    elif quantization.bias_correction:
        corrected = framework.correct_bias(
            quantized,
            calibration_data(),
            on_layer=lambda done, of: progress.update("bias correction", done, of),
        )
    metrics = {
        **accuracies(
            test=split_accuracy(framework, quantized, dataset, "test"),
            validation=split_accuracy(framework, quantized, dataset, "validation"),
        ),
        "quantizers": float(len(plan.quantizers)),
        "unsigned_quantizers": float(sum(entry.unsigned for entry in plan.quantizers)),
        "skipped_layers": float(len(plan.skipped)),
        "calibration_samples": float(report.samples),
        "corrected_biases": float(corrected),
        "equalized": float(is_equalized),
    }
    if quantization.rounding == "adaround":
        metrics["rounded_layers"] = float(rounded)
    ptq = Quantized(out)
    framework.save(quantized, ptq)
    ptq.write_plan(plan)
    ptq.write_spec(spec.to_list() if spec else [])
    ptq.write_ranges(describe_ranges(framework.quantizers(quantized), plan, report))
    if costs is not None:
        ptq.write_costs(costs)
    ptq.write_metrics(metrics)
    return metrics
