"""Step evaluate: the engines compared with the FP32 model on the test part."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qat_lib.engines import Engine, benchmark_together, load_engine
from qat_lib.errors import DataError, EngineLoadError
from qatline.components.artifacts import (
    Baseline,
    Dataset,
    Engines,
    Evaluation,
    Exported,
    FineTuned,
    ResultRow,
)
from qatline.components.artifacts.evaluation import (
    BatchTiming,
    FileCheck,
    Measurements,
    row_metrics,
)
from qatline.components.artifacts.models import Control, ModelFolder
from qatline.components.artifacts.rows import (
    CANDIDATE,
    CHAMPION,
    CONTROL,
    FLOAT_ENGINES,
    FP32_ENGINE,
    REFERENCE,
    row_title,
)
from qatline.components.artifacts.variants import CANDIDATE_VARIANT, HALF, REQUIRED
from qatline.components.data.reader import numpy_batches
from qatline.components.evaluation import metrics as figures
from qatline.components.evaluation.against_champion import compare_with_current
from qatline.components.evaluation.inference import Classifier
from qatline.components.evaluation.infrastructure import check_in_fresh_process, summarize_check
from qatline.components.evaluation.samples import SampleLabels, WorstSamples
from qatline.components.evaluation.speed import speed_sentences
from qatline.components.registry.access import champion_digest
from qatline.components.settings import EngineSettings, RegistrySettings, Settings
from qatline.components.support.events import Progress

_WORST = 8
_CHECKED = 64
"""Number of test samples for the check of an engine file."""
_MIDDLE_BATCH = 8
_UNNAMED = RegistrySettings()

Outputs = NDArray[np.float32]


def evaluate_step(
    dataset: Path,
    baseline: Path,
    qat: Path,
    onnx: Path,
    engines: Path,
    out: Path,
    *,
    engine: EngineSettings,
    seed: int,
    progress: Progress,
    registry: RegistrySettings = _UNNAMED,
) -> dict[str, float]:
    """Measure each engine's accuracy, latency, throughput and memory; check its file.

    Args:
        dataset: directory of prepare_data.
        baseline: directory of train_baseline; its ``predictions.npy`` is the FP32 reference.
        qat: directory of finetune_qat; the predictions of its control, if any, are a separate row.
        onnx: directory of export_onnx, for the numeric reference.
        engines: directory of build_engine.
        out: existing empty directory; receives ``evaluation.json`` and the pictures in
            ``worst_samples/``.
        engine: batch size of the throughput measurement and seconds of each benchmark.
        seed: seed of random requests.
        progress: receives samples and benchmarks.
        registry: registered model with the champion to compare.

    Returns:
        The numeric measurements of each row as ``<row>_<figure>``.

    Raises:
        DataError: the reference predictions do not fit the test part, or an engine's outputs
            contain NaN.
        EngineLoadError: an engine is missing or cannot be used here.
    """
    info, fp32, built = Dataset(dataset).info(), Baseline(baseline), Engines(engines)
    reference, evaluation = fp32.predictions(), Evaluation(out)
    with ExitStack() as stack:
        loaded = _load(built, stack)
        classifiers = {row: Classifier(one, tuple(info.image_shape)) for row, one in loaded.items()}
        labels, outputs, worst = _predict(
            dataset, classifiers, reference, list(info.classes), progress
        )
        for row, values in outputs.items():
            output = classifiers[row].output
            figures.check_outputs(values, f"the {row_title(row)} (output {output})")
        latencies = _benchmark(classifiers, engine, seed, progress)
        rows = {row: _engine_row(one, latencies[row]) for row, one in loaded.items()}
        device = loaded[CANDIDATE].manifest.device
    control = FineTuned(qat).control()
    outputs = {REFERENCE: reference, **_control_outputs(control), **outputs}
    checks = _check_files(built, Exported(onnx), dataset, seed, progress)
    for half in HALF:
        if half.row in checks and not checks[half.row].passed:
            # A 16-bit engine with wrong outputs must not compete with INT8: drop it.
            progress.warn(f"{row_title(half.row)}, which is left out: {checks[half.row].message}")
            for measured in (checks, rows, outputs, latencies):
                measured.pop(half.row)
    for name, check in checks.items():
        rows[name] = rows[name].with_memory(check.memory_mib)
    if CONTROL in outputs:
        rows = {CONTROL: _reference_row(control, rows[FP32_ENGINE]), **rows}
    rows = {REFERENCE: _reference_row(fp32, rows[FP32_ENGINE]), **rows}
    confusions, agreement, calibration = {}, {}, {}
    for name, values in outputs.items():
        rows[name] = _with_quality(rows[name], values, labels)
        confusions[name] = figures.confusion(values, labels, len(info.classes))
        agreement[name] = figures.agreement(values, reference)
        calibration[name] = figures.calibration_error(values, labels)
    comparison = compare_with_current(
        registry,
        Exported(onnx).graph(CANDIDATE_VARIANT),
        dataset,
        engine=engine,
        backend=rows[CANDIDATE].backend,
        seed=seed,
        progress=progress,
    )
    if comparison is not None and comparison.champion.accuracy is not None:
        rows[CHAMPION] = comparison.champion
    floats = {title: rows[name] for name, title in FLOAT_ENGINES.items() if name in rows}
    measurements = Measurements(
        version=1,
        samples=len(labels),
        classes=info.classes,
        rows=rows,
        confusion={name: matrix.tolist() for name, matrix in confusions.items()},
        per_class=figures.per_class(confusions, info.classes, REFERENCE),
        agreement=agreement,
        calibration_error=calibration,
        worst_samples=worst.write(evaluation, CANDIDATE),
        latency=latencies,
        comparison=comparison,
        identity=uuid.uuid4().hex,
        infrastructure_check=summarize_check(checks, CANDIDATE),
        speed=speed_sentences(rows[CANDIDATE], floats, device),
    )
    evaluation.write_measurements(measurements)
    return row_metrics(rows, separator="_")


def evaluate_settings(sections: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that affect the result; of the registry only the name."""
    return {**sections, "registry": RegistrySettings(name=sections["registry"].name)}


def evaluate_state(sections: Mapping[str, Settings]) -> dict[str, str]:
    """Return further dependencies of the result: the champion."""
    return champion_digest(sections["registry"])


def _load(engines: Engines, stack: ExitStack) -> dict[str, Engine]:
    if missing := engines.missing([variant.engine for variant in REQUIRED]):
        raise EngineLoadError(
            f"{engines.path} holds no {', '.join(missing)}. Run {engines.STEP} again."
        )
    return {
        variant.row: stack.enter_context(load_engine(engines.engine(variant)))
        for variant in engines.built()
    }


def _predict(
    dataset: Path,
    classifiers: Mapping[str, Classifier],
    reference: Outputs,
    classes: list[str],
    progress: Progress,
) -> tuple[NDArray[np.int64], dict[str, Outputs], WorstSamples]:
    """Stream the test part once through every engine."""
    collected: dict[str, list[Outputs]] = {row: [] for row in classifiers}
    labels: list[NDArray[np.int64]] = []
    worst, seen = WorstSamples(_WORST), 0
    batch_size = min(classifier.largest_batch for classifier in classifiers.values())
    for images, truth in numpy_batches(dataset, "test", batch_size):
        expected = reference[seen : seen + len(truth)]
        if len(expected) < len(truth):
            break
        labels.append(truth)
        for row, classifier in classifiers.items():
            collected[row].append(classifier(images))
        candidate = collected[CANDIDATE][-1]
        if candidate.shape != expected.shape:
            raise DataError(
                f"The engine gives {candidate.shape[1]} classes, the FP32 model gives "
                f"{expected.shape[1]}."
            )
        ours, theirs = figures.probabilities(candidate), figures.probabilities(expected)
        named = [
            SampleLabels(true=classes[t], fp32=classes[r], engine=classes[e])
            for t, r, e in zip(truth, theirs.argmax(axis=1), ours.argmax(axis=1), strict=True)
        ]
        worst.add(np.abs(ours - theirs).max(axis=1), images, named, seen)
        seen += len(truth)
        progress.update("evaluating", seen, len(reference))
    if seen != len(reference) or not seen:
        raise DataError(
            f"The FP32 predictions are for {len(reference)} samples, the test part does not have "
            "as many. Run train_baseline again on this data set."
        )
    return (
        np.concatenate(labels),
        {row: np.concatenate(parts) for row, parts in collected.items()},
        worst,
    )


def _benchmark(
    classifiers: Mapping[str, Classifier], settings: EngineSettings, seed: int, progress: Progress
) -> dict[str, list[BatchTiming]]:
    """Benchmark each engine at batch 1, a medium one and ``engine.batch_size``."""
    wanted = {1, min(_MIDDLE_BATCH, settings.batch_size), settings.batch_size}
    groups: dict[int, dict[str, Engine]] = {}
    for row, classifier in classifiers.items():
        for size in {classifier.nearest_batch(size) for size in wanted}:
            groups.setdefault(size, {})[row] = classifier.engine
    results: dict[str, list[BatchTiming]] = {row: [] for row in classifiers}
    for done, size in enumerate(sorted(groups)):
        progress.update("benchmark", done, len(groups))
        seconds = settings.benchmark_seconds
        for row, latency in benchmark_together(
            groups[size], batch_size=size, seconds=seconds, seed=seed
        ).items():
            results[row].append(BatchTiming.model_validate(latency.to_dict()))
    progress.update("benchmark", len(groups), len(groups))
    return results


def _engine_row(engine: Engine, latencies: list[BatchTiming]) -> ResultRow:
    """Return an engine's row; engines with a fixed larger batch have no latency at batch 1."""
    single = {timing.batch_size: timing.end_to_end for timing in latencies}.get(1)
    precision, memory = engine.manifest.precision, engine.manifest.device_memory_bytes
    return ResultRow(
        bytes=engine.manifest.bytes,
        latency_ms_p50=single.p50 if single else None,
        latency_ms_p99=single.p99 if single else None,
        throughput=latencies[-1].throughput,
        batch_size=latencies[-1].batch_size,
        int8_layers=precision.int8_layers,
        weighted_layers=precision.weighted_layers,
        backend=engine.manifest.backend,
        device_memory_mib=None if memory is None else memory / 2**20,
    )


def _control_outputs(control: Control) -> dict[str, Outputs]:
    """Return the predictions of the FP32 control, if it was trained."""
    return {CONTROL: control.predictions()} if control.has(control.PREDICTIONS) else {}


def _reference_row(baseline: ModelFolder, fp32_engine: ResultRow) -> ResultRow:
    """Return the row of the FP32 model; latencies are not measured."""
    model = baseline.model_file
    return ResultRow(
        bytes=model.stat().st_size if model.is_file() else None,
        latency_ms_p50=None,
        latency_ms_p99=None,
        throughput=None,
        batch_size=fp32_engine.batch_size,
        int8_layers=0,
        weighted_layers=fp32_engine.weighted_layers,
        backend=baseline.framework,
    )


def _with_quality(row: ResultRow, outputs: Outputs, labels: NDArray[np.int64]) -> ResultRow:
    return row.with_quality(
        accuracy=figures.accuracy(outputs, labels), top5=figures.top5_accuracy(outputs, labels)
    )


def _check_files(
    engines: Engines, exported: Exported, dataset: Path, seed: int, progress: Progress
) -> dict[str, FileCheck]:
    variants = engines.built()
    checks = {}
    with tempfile.TemporaryDirectory(prefix="qatline-check-") as scratch:
        inputs = Path(scratch) / "inputs.npy"
        images, _ = next(iter(numpy_batches(dataset, "test", _CHECKED)))
        np.save(inputs, images)
        for index, variant in enumerate(variants):
            progress.update("checking", index, len(variants))
            checks[variant.row] = check_in_fresh_process(
                engines.engine(variant), exported.reference(variant), seed=seed, inputs=inputs
            )
    progress.update("checking", len(variants), len(variants))
    return checks
