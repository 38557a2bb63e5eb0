"""Step evaluate: the engines compared with the FP32 model on the test part."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
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
from qatline.components.artifacts.comparison import ChanceTest
from qatline.components.artifacts.evaluation import (
    Agreement,
    BatchTiming,
    FileCheck,
    GroupQuality,
    Measurements,
    row_metrics,
)
from qatline.components.artifacts.models import Control, ModelFolder
from qatline.components.artifacts.variants import (
    CANDIDATE,
    CANDIDATE_VARIANT,
    CHAMPION,
    CONTROL,
    FLOAT_ENGINES,
    FP32_ENGINE,
    HALF,
    REFERENCE,
    REQUIRED,
    Variant,
    row_title,
)
from qatline.components.data.reader import numpy_batches
from qatline.components.evaluation.against_champion import compare_with_current
from qatline.components.evaluation.inference import EngineRunner
from qatline.components.evaluation.infrastructure import check_in_fresh_process, summarize_check
from qatline.components.evaluation.samples import ShownSample, WorstSamples
from qatline.components.evaluation.speed import speed_sentences
from qatline.components.registry.access import champion_digest
from qatline.components.settings import EngineSettings, RegistrySettings, Settings
from qatline.components.support.events import Progress
from qatline.components.tasks import (
    Outputs,
    Samples,
    Task,
    check_numbers,
    joined,
    open_task,
    rows_of,
    samples_of,
    shapes_of,
)

_WORST = 8
# Number of test samples for the check of an engine file.
_CHECKED = 64
_MIDDLE_BATCH = 8
_UNNAMED = RegistrySettings()

Array = NDArray[Any]


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
    """Measure each engine's quality, latency, throughput and memory; check its file.

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
    task, evaluation = open_task(info), Evaluation(out)
    control = FineTuned(qat).control()
    references = {REFERENCE: fp32.predictions(), **_control_outputs(control)}
    with ExitStack() as stack:
        loaded = _load(built, stack)
        classifiers = {row: EngineRunner(one, info.shapes) for row, one in loaded.items()}
        quality, worst = _measure(dataset, task, classifiers, references, progress)
        latencies = _benchmark(classifiers, engine, seed, progress)
        rows = {row: _engine_row(one, latencies[row]) for row, one in loaded.items()}
        device = loaded[CANDIDATE].manifest.device
    checks = _check_files(built, Exported(onnx), dataset, seed, progress)
    for half in HALF:
        if half.row in checks and not checks[half.row].passed:
            # A 16-bit engine with wrong outputs must not compete with INT8: drop it.
            progress.warn(f"{row_title(half.row)}, which is left out: {checks[half.row].message}")
            for measured in (checks, rows, quality, latencies):
                measured.pop(half.row)
    for name, check in checks.items():
        rows[name] = rows[name].with_memory(check.memory_mib)
    if CONTROL in references:
        rows = {CONTROL: _reference_row(control, rows[FP32_ENGINE]), **rows}
    rows = {REFERENCE: _reference_row(fp32, rows[FP32_ENGINE]), **rows}
    for name, found in quality.items():
        rows[name] = rows[name].with_quality(task.summarize(found.samples), task.primary)
    comparison = compare_with_current(
        registry,
        Exported(onnx).graph(CANDIDATE_VARIANT),
        dataset,
        engine=engine,
        backend=rows[CANDIDATE].backend,
        seed=seed,
        progress=progress,
    )
    if comparison is not None and comparison.champion.value is not None:
        rows[CHAMPION] = comparison.champion
    floats = {title: rows[name] for name, title in FLOAT_ENGINES.items() if name in rows}
    measurements = Measurements(
        version=1,
        samples=info.splits["test"],
        metrics=task.metrics,
        rows=rows,
        groups=_groups(task, quality),
        details={name: task.details(found.samples) for name, found in quality.items()},
        chance=_chance(task, quality[CANDIDATE]),
        agreement={name: found.agreement() for name, found in quality.items()},
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


class _Quality:
    """Statistics of a row's outputs, collected in batches."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._samples: list[Samples] = []
        self._shuffled: list[Samples] = []
        self._differences: list[Array] = []
        self._same: list[Array] = []

    def add(self, outputs: Outputs, reference: Outputs, targets: Array, others: Array) -> None:
        """Add a batch, with the outputs of FP32 and the targets of other samples."""
        task = self._task
        self._samples.append(task.measure(outputs, targets))
        self._shuffled.append(task.measure(outputs, others))
        self._differences.append(task.differences(outputs, reference))
        if (same := task.same(outputs, reference)) is not None:
            self._same.append(same)

    @property
    def samples(self) -> Samples:
        """Statistics of all samples."""
        return joined(self._samples)

    @property
    def shuffled(self) -> Samples:
        """Statistics of the outputs with targets of other samples."""
        return joined(self._shuffled)

    def agreement(self) -> Agreement:
        """Return the agreement with FP32."""
        differences = np.concatenate(self._differences)
        return Agreement(
            same=float(np.concatenate(self._same).mean()) if self._same else None,
            largest_difference=float(differences.max()),
            mean_difference=float(differences.mean()),
        )


def _measure(
    dataset: Path,
    task: Task,
    classifiers: Mapping[str, EngineRunner],
    references: Mapping[str, Outputs],
    progress: Progress,
) -> tuple[dict[str, _Quality], WorstSamples]:
    """Stream the test part once through every engine.

    Args:
        dataset: directory of prepare_data.
        task: the task.
        classifiers: engines by row.
        references: outputs of models by row; those of FP32 are the reference of all rows.
        progress: receives the number of samples.
    """
    quality = {row: _Quality(task) for row in (*references, *classifiers)}
    expected, total = references[REFERENCE], samples_of(references[REFERENCE])
    task.observe(expected)
    worst, seen, before = WorstSamples(_WORST), 0, None
    batch_size = min(classifier.largest_batch for classifier in classifiers.values())
    for inputs, targets in numpy_batches(dataset, "test", batch_size):
        rows = slice(seen, seen + len(targets))
        fp32 = rows_of(expected, rows)
        if samples_of(fp32) < len(targets):
            break
        # Each output meets the target of the sample before, also across batches of one sample.
        others = np.concatenate([targets[-1:] if before is None else before, targets[:-1]])
        before = targets[-1:]
        for row, values in references.items():
            quality[row].add(rows_of(values, rows), fp32, targets, others)
        for row, classifier in classifiers.items():
            outputs = classifier(inputs)
            check_numbers(outputs, f"the {row_title(row)} (output {classifier.output})")
            _check_shapes(outputs, fp32)
            quality[row].add(outputs, fp32, targets, others)
            if row == CANDIDATE:
                show = _shown(task, inputs, targets, fp32, outputs)
                worst.add(task.differences(outputs, fp32), seen, show)
        seen += len(targets)
        progress.update("evaluating", seen, total)
    if seen != total or not seen:
        raise DataError(
            f"The FP32 predictions are for {total} samples, the test part does not have "
            "as many. Run train_baseline again on this data set."
        )
    return quality, worst


def _shown(
    task: Task, inputs: Any, targets: Array, fp32: Outputs, engine: Outputs
) -> Callable[[int], ShownSample]:
    """Return a function that shows a sample of a batch."""

    def show(index: int) -> ShownSample:
        return ShownSample(
            true=task.describe_target(targets[index]),
            fp32=task.describe(fp32, index),
            engine=task.describe(engine, index),
            picture=task.picture(inputs, targets, [fp32, engine], index),
        )

    return show


def _check_shapes(outputs: Outputs, reference: Outputs) -> None:
    ours, theirs = shapes_of(outputs), shapes_of(reference)
    if ours != theirs:
        raise DataError(
            f"The engine gives outputs of shape {ours}, the FP32 model gives {theirs}. Run the "
            "pipeline again from export_onnx."
        )


def _groups(task: Task, quality: Mapping[str, _Quality]) -> list[GroupQuality]:
    """Return the quality by class or other group, for each row."""
    found: dict[str, GroupQuality] = {}
    for row, measured in quality.items():
        for group in task.groups(measured.samples):
            known = found.get(group.name, GroupQuality(name=group.name, samples=group.samples))
            values = {**known.values, row: group.value}
            found[group.name] = known.model_copy(update={"values": values})
    return list(found.values())


def _chance(task: Task, quality: _Quality) -> ChanceTest:
    return task.compare_with_chance(quality.samples, quality.shuffled)


def _benchmark(
    classifiers: Mapping[str, EngineRunner], settings: EngineSettings, seed: int, progress: Progress
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


def _check_files(
    engines: Engines, exported: Exported, dataset: Path, seed: int, progress: Progress
) -> dict[str, FileCheck]:
    variants = engines.built()
    checks: dict[str, FileCheck] = {}
    with tempfile.TemporaryDirectory(prefix="qatline-check-") as scratch:
        batch, _ = next(iter(numpy_batches(dataset, "test", _CHECKED)))
        inputs = Path(scratch) / ("inputs.npz" if isinstance(batch, Mapping) else "inputs.npy")
        if isinstance(batch, Mapping):
            np.savez(inputs, **batch)
        else:
            np.save(inputs, batch)

        def check(variant: Variant) -> FileCheck:
            return check_in_fresh_process(
                engines.engine(variant), exported.reference(variant), seed=seed, inputs=inputs
            )

        # A check loads libraries and files on one core for half of its time.
        with ThreadPoolExecutor(max_workers=2) as pool:
            progress.update("checking", 0, len(variants))
            for variant, found in zip(variants, pool.map(check, variants), strict=True):
                checks[variant.row] = found
                progress.update("checking", len(checks), len(variants))
    return checks
