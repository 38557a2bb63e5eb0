"""Evaluate any kind of model on labelled data.

The code is that of the step evaluate.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from qat_lib.errors import ConfigError, DataError
from qatline.components.artifacts.metric import Metric
from qatline.components.data.labelled import Labelled
from qatline.components.evaluation.inference import EngineRunner
from qatline.components.support.other_tasks import OTHER_TASKS
from qatline.components.tasks import check_numbers, task_for
from qatline.pipelines.cli.data_files import check_inputs, check_labels_fit

if TYPE_CHECKING:
    from qat_lib.engines import Engine

Outputs = NDArray[np.floating[Any]]


@dataclass(frozen=True, kw_only=True)
class FileEvaluation:
    """What was measured of one file.

    Attributes:
        model: the file.
        backend: ``keras``, or the backend that ran it.
        samples: number of samples.
        quality: metrics of the task by name, the primary one first.
        metrics: their descriptions.
        latency_batch: batch size of the latency: 1, or the nearest that the engine takes.
        latency_ms_p50: median latency; None where it was not asked for.
        latency_ms_p99: its 99th percentile.
    """

    model: Path
    backend: str
    samples: int
    quality: dict[str, float]
    metrics: Sequence[Metric]
    latency_batch: int | None = None
    latency_ms_p50: float | None = None
    latency_ms_p99: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {**plain, "model": str(self.model), "metrics": [m.name for m in self.metrics]}


def evaluate_file(
    model: Path, part: Labelled, data: Path, *, batch_size: int, seconds: float | None
) -> FileEvaluation:
    """Measure a Keras model (``.keras``), an ONNX file (``.onnx``) or an engine.

    Args:
        model: the file.
        part: inputs as the model takes them, and labels.
        data: where they are from, for messages.
        batch_size: samples run together, as far as the engine takes them.
        seconds: how long to measure latency; None for not at all.

    Raises:
        ConfigError: Latency is asked for of a Keras model.
        DataError: The data does not fit the model, or the model gives NaN.
        EngineLoadError, ExportError: The file can't be used.
    """
    if model.suffix == ".keras":
        if seconds is not None:
            raise ConfigError(
                f"Expected no --latency with {model}: it is measured on engines and ONNX files."
            )
        outputs = _keras_outputs(model, part, data, batch_size)
        return _measured(model, "keras", outputs, part, data)
    with _opened(model, batch_size) as engine:
        classifier = _classifier(engine, part, data)
        outputs = _engine_outputs(classifier, part, batch_size)
        found = _measured(model, engine.manifest.backend, outputs, part, data)
        if seconds is None:
            return found
        size = classifier.nearest_batch(1)
        times = engine.benchmark(batch_size=size, seconds=seconds).end_to_end
    fields = {**found.__dict__, "latency_batch": size}
    return FileEvaluation(**fields | {"latency_ms_p50": times.p50, "latency_ms_p99": times.p99})


def _keras_outputs(model: Path, part: Labelled, data: Path, batch_size: int) -> Outputs:
    from qatline.pipelines.cli.quiet_import import import_tensorflow

    import_tensorflow()
    import qat_lib
    from qatline.components.training.fitting import predict

    network = qat_lib.load_model(model)
    check_inputs(network, part.x, data)
    return np.concatenate([*predict(network, _batches(part, batch_size))])


@contextmanager
def _opened(model: Path, batch_size: int) -> Iterator[Engine]:
    """Open an engine, built temporarily for an ONNX file.

    ONNX Runtime builds it; it is deleted when the block ends.
    """
    from qat_lib.engines import BuildSpec, build_engine, load_engine

    if model.suffix != ".onnx":
        with load_engine(model) as engine:
            yield engine
        return
    with tempfile.TemporaryDirectory(prefix="qatline-") as folder:
        spec = BuildSpec(backend="onnxruntime", max_batch_size=batch_size)
        built = build_engine(model, spec, output=Path(folder) / "model.engine", verify=False)
        with load_engine(built.path) as engine:
            yield engine


def _classifier(engine: Engine, part: Labelled, data: Path) -> EngineRunner:
    names = [info.name for info in engine.inputs]
    if len(names) != 1:
        raise DataError(
            f"Expected a model with one input; it has {', '.join(names)}. {data} holds one. "
            f"{OTHER_TASKS}"
        )
    return EngineRunner(engine, part.x.shape[1:], raw=True)


def _engine_outputs(classifier: EngineRunner, part: Labelled, batch_size: int) -> Outputs:
    (info,) = classifier.engine.inputs
    raw = info.dtype == str(part.x.dtype)
    batches = _batches(part, classifier.nearest_batch(batch_size), as_float=not raw)
    return np.concatenate([classifier(batch) for batch in batches])


def _batches(part: Labelled, size: int, *, as_float: bool = True) -> Iterator[NDArray[Any]]:
    for start in range(0, len(part.targets), size):
        block = np.asarray(part.x[start : start + size])
        yield block.astype(np.float32) if as_float else block


def _measured(
    model: Path, backend: str, outputs: Outputs, part: Labelled, data: Path
) -> FileEvaluation:
    if outputs.ndim != 2:
        raise DataError(
            f"Expected a model with outputs (samples, classes). {model} gives {outputs.shape}. "
            f"{OTHER_TASKS}"
        )
    classes = outputs.shape[1]
    check_labels_fit(part, classes, data)
    check_numbers(outputs, str(model))
    task = task_for("classification", classes=tuple(map(str, range(classes))))
    return FileEvaluation(
        model=model,
        backend=backend,
        samples=len(part.targets),
        quality=task.summarize(task.measure(outputs, part.targets)),
        metrics=task.metrics,
    )
