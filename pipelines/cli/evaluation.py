"""Evaluate any kind of model on arrays with targets.

The code is that of the step evaluate.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qat_lib.engines.onnx_graph import read_summary
from qat_lib.engines.spec import ShapeProfile
from qat_lib.errors import ConfigError
from qatline.components.artifacts.metric import Metric
from qatline.components.data.labelled import AsFloat, Labelled
from qatline.components.evaluation.inference import EngineRunner, Shape
from qatline.components.tasks import (
    Outputs,
    check_numbers,
    joined,
    task_of_model,
)
from qatline.pipelines.cli.data_files import check_inputs

if TYPE_CHECKING:
    from qat_lib.engines import Engine

Batches = Iterable[Any]


@dataclass(frozen=True, kw_only=True)
class FileEvaluation:
    """Quality and latency of one file.

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
    model: Path,
    part: Labelled,
    data: Path,
    *,
    task: str | None = None,
    batch_size: int,
    seconds: float | None,
) -> FileEvaluation:
    """Measure a Keras model (``.keras``), an ONNX file (``.onnx``) or an engine.

    Args:
        model: the file.
        part: inputs as the model takes them, and targets.
        data: where they are from, for messages.
        task: a built-in task, or ``module:Class``. Default: derived from the targets.
        batch_size: samples run together, as far as the engine takes them.
        seconds: how long to measure latency; None for not at all.

    Raises:
        ConfigError: Latency is asked for of a Keras model, or the task does not exist.
        DataError: The data does not fit the model, or the model gives NaN.
        EngineLoadError, ExportError: The file can't be used.
        UnsupportedModelError: The model does not fit the task.
    """
    if model.suffix == ".keras":
        if seconds is not None:
            raise ConfigError(
                f"Expected no --latency with {model}: it is measured on engines and ONNX files."
            )
        shapes, run = _keras(model, part, data)
        return _measured(model, "keras", shapes, run, part, task, batch_size)
    with opened(model, batch_size, part.input_shape) as engine:
        runner = EngineRunner(engine, part.input_shape, raw=True)
        found = _measured(
            model,
            engine.manifest.backend,
            runner.output_shapes,
            lambda batches: map(runner, map(runner.as_taken, batches)),
            part,
            task,
            runner.nearest_batch(batch_size),
        )
        if seconds is None:
            return found
        # An engine of a fixed batch runs no single sample.
        size = runner.nearest_batch(1)
        times = engine.benchmark(batch_size=size, seconds=seconds).end_to_end
    fields = {**found.__dict__, "latency_batch": size}
    return FileEvaluation(**fields | {"latency_ms_p50": times.p50, "latency_ms_p99": times.p99})


def _keras(
    model: Path, part: Labelled, data: Path
) -> tuple[dict[str, tuple[int | None, ...]], Callable[[Batches], Iterator[Outputs]]]:
    """Return the output shapes of a Keras model, and a function that runs it."""
    from qatline.pipelines.cli.quiet_import import import_tensorflow

    import_tensorflow()
    import qat_lib
    from qatline.components.training.fitting import predict
    from qatline.components.training.model_source import output_shapes

    network = qat_lib.load_model(model)
    check_inputs(network, part.x, data)
    as_float = AsFloat(image_shape=part.input_shape)
    return output_shapes(network), lambda batches: predict(network, map(as_float.apply, batches))


@contextmanager
def opened(
    model: Path, batch_size: int, sample: Shape | Mapping[str, Shape] = ()
) -> Iterator[Engine]:
    """Open an engine, built temporarily for an ONNX file.

    ONNX Runtime builds it; it is deleted when the block ends.

    Args:
        model: the engine, or the ONNX file.
        batch_size: largest batch of a temporary engine.
        sample: shape of a sample of the only input, or of each of several by name, for inputs of
            open sizes.

    Raises:
        EngineLoadError, ExportError: The file can't be used.
    """
    from qat_lib.engines import BuildSpec, build_engine, load_engine

    if model.suffix != ".onnx":
        with load_engine(model) as engine:
            yield engine
        return
    with tempfile.TemporaryDirectory(prefix="qatline-") as folder:
        spec = BuildSpec(backend="onnxruntime", max_batch_size=batch_size)
        spec = replace(spec, shapes=_profiles(model, batch_size, sample))
        built = build_engine(model, spec, output=Path(folder) / "model.engine", verify=False)
        with load_engine(built.path) as engine:
            yield engine


def _profiles(
    model: Path, batch_size: int, sample: Shape | Mapping[str, Shape]
) -> dict[str, ShapeProfile]:
    """Return the profiles of the inputs of open sizes."""
    profiles = {}
    for info in read_summary(model).inputs:
        given = sample.get(info.name, ()) if isinstance(sample, Mapping) else sample
        if None in info.shape[1:] and len(given) == len(info.shape) - 1:
            rest = [wanted or size for wanted, size in zip(info.shape[1:], given, strict=True)]
            largest = (batch_size, *rest)
            profiles[info.name] = ShapeProfile(minimum=(1, *rest), optimum=largest, maximum=largest)
    return profiles


def _measured(
    model: Path,
    backend: str,
    shapes: Mapping[str, Sequence[int | None]],
    run: Callable[[Batches], Iterable[Outputs]],
    part: Labelled,
    name: str | None,
    size: int,
) -> FileEvaluation:
    task, targets = task_of_model(shapes, part.targets, str(model), name, inputs=part.input_shape)
    starts = range(0, len(targets), size)
    batches = (part.inputs(slice(start, start + size)) for start in starts)
    measured = []
    for start, outputs in zip(starts, run(batches), strict=True):
        check_numbers(outputs, str(model))
        measured.append(task.measure(outputs, targets[start : start + size]))
    return FileEvaluation(
        model=model,
        backend=backend,
        samples=len(targets),
        quality=task.summarize(joined(measured)),
        metrics=task.metrics,
    )
