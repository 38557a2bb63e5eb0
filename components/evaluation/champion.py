"""Comparison of candidate and champion on the same test part and machine."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from qat_lib.engines import BuildSpec, Engine, benchmark_together, build_engine, load_engine
from qat_lib.errors import DataError, QatlineError
from qat_lib.options import Backend
from qat_lib.preprocessing import AnyPreprocessing
from qatline.components.artifacts import Dataset
from qatline.components.artifacts.comparison import ChampionComparison
from qatline.components.artifacts.result_row import ResultRow
from qatline.components.data.reader import open_split
from qatline.components.evaluation.inference import EngineRunner
from qatline.components.registry.package import Champion
from qatline.components.settings import EngineSettings
from qatline.components.tasks import Samples, Task, check_numbers, joined, open_task


@dataclass(frozen=True, kw_only=True)
class _Contender:
    """An engine with its preprocessing and the class names of its training."""

    engine: Engine
    classifier: EngineRunner
    preprocessing: AnyPreprocessing
    classes: Sequence[str]


def compare_with_champion(
    dataset: Path,
    candidate: Path,
    champion: Champion,
    *,
    settings: EngineSettings,
    backend: Backend,
    seed: int,
) -> ChampionComparison:
    """Measure the candidate and the champion on the test part, sample by sample.

    Both engines are built here from their ONNX files. Each uses the preprocessing of its training;
    the champion's outputs are matched by class names.

    Args:
        dataset: directory of prepare_data.
        candidate: the candidate's ONNX file.
        champion: the champion's files.
        settings: settings of the engines and their benchmark.
        backend: backend of both engines.
        seed: seed of random requests.

    Returns:
        The comparison; ``problem`` is set if the champion cannot be built here or does not fit the
        data.
    """
    known = ChampionComparison(version=champion.version, digest=champion.digest)
    own = Dataset(dataset).preprocessing()
    try:
        with (
            _contender(dataset, candidate, settings, backend, own, seed=seed) as ours,
            _contender(
                dataset,
                champion.graph,
                settings,
                backend,
                champion.preprocessing or own,
                names=champion.classes,
                seed=seed,
            ) as theirs,
        ):
            return _measured(known, dataset, ours, theirs, settings, seed)
    except QatlineError as error:
        problem = f"version {champion.version} can't be measured here: {error}"
        return known.model_copy(update={"problem": problem})


@contextmanager
def _contender(
    dataset: Path,
    graph: Path,
    settings: EngineSettings,
    backend: Backend,
    preprocessing: AnyPreprocessing,
    *,
    seed: int,
    names: Sequence[str] = (),
) -> Iterator[_Contender]:
    """Build and open the engine of a graph trained on the classes ``names``."""
    info = Dataset(dataset).info()
    if preprocessing.image_shape != info.shapes:
        raise DataError(
            f"it takes images of shape {preprocessing.image_shape}, the data has {info.shapes}"
        )
    spec = BuildSpec(
        backend=backend,
        max_batch_size=settings.batch_size,
        threads=settings.threads,
        workspace_mib=settings.workspace_mib,
        optimization_level=settings.optimization_level,
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.engine"
        build_engine(graph, spec, output=path, seed=seed)
        with load_engine(path) as engine:
            yield _Contender(
                engine=engine,
                classifier=EngineRunner(engine, info.shapes),
                preprocessing=preprocessing,
                classes=names,
            )


def _measured(
    known: ChampionComparison,
    dataset: Path,
    ours: _Contender,
    theirs: _Contender,
    settings: EngineSettings,
    seed: int,
) -> ChampionComparison:
    task = open_task(Dataset(dataset).info())
    samples = _measure(dataset, task, (ours, theirs))
    rows = _rows((ours, theirs), task, samples, settings, seed)
    return known.model_copy(
        update={
            "candidate": rows[0],
            "champion": rows[1],
            "test": task.compare(*samples),
            "groups": task.compare_groups(*samples),
        }
    )


def _measure(dataset: Path, task: Task, contenders: Sequence[_Contender]) -> list[Samples]:
    """Return the statistics of each contender on the test part."""
    # Raw pixels: candidate and champion may have different preprocessing.
    part = open_split(dataset, "test")
    measured: list[list[Samples]] = [[] for _ in contenders]
    batch = min(each.classifier.largest_batch for each in contenders)
    for start in range(0, len(part.targets), batch):
        indices = np.arange(start, min(start + batch, len(part.targets)), dtype=np.int64)
        pixels = part.inputs(indices)
        for each, found in zip(contenders, measured, strict=True):
            outputs = each.classifier(each.preprocessing.apply(pixels))
            check_numbers(outputs, "the engine")
            found.append(task.measure(task.align(outputs, each.classes), part.targets[indices]))
    return [joined(found) for found in measured]


def _rows(
    contenders: Sequence[_Contender],
    task: Task,
    samples: Sequence[Samples],
    settings: EngineSettings,
    seed: int,
) -> list[ResultRow]:
    """Return quality, size and interleaved speed measurements of each contender."""
    rows = []
    for each, found in zip(contenders, samples, strict=True):
        manifest = each.engine.manifest
        precision = manifest.precision
        row = ResultRow(
            bytes=manifest.bytes,
            backend=manifest.backend,
            int8_layers=precision.int8_layers,
            weighted_layers=precision.weighted_layers,
        )
        rows.append(row.with_quality(task.summarize(found), task.primary))
    # Measured in turns: clock changes and other load of the machine affect both engines equally.
    engines = {str(place): each.engine for place, each in enumerate(contenders)}
    sizes = {each.classifier.nearest_batch(1) for each in contenders}
    sizes |= {each.classifier.nearest_batch(settings.batch_size) for each in contenders}
    for size in sorted(sizes):
        measured = benchmark_together(
            engines, batch_size=size, seconds=settings.benchmark_seconds, seed=seed
        )
        for place in range(len(rows)):
            found_here = measured[str(place)]
            update: dict[str, float] = {
                "batch_size": size,
                "throughput": found_here.throughput,
            }
            if size == 1:
                update |= {
                    "latency_ms_p50": found_here.p50_ms,
                    "latency_ms_p99": found_here.p99_ms,
                }
            rows[place] = rows[place].model_copy(update=update)
    return rows
