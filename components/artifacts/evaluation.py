"""Output of evaluate: each engine's measurements and difference from FP32."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import BeforeValidator, Field

from components.artifacts.folder import StepFolder
from components.artifacts.record import Measured, Record, Text, objects


class ResultRow(Record):
    """The figures of one row of the results; None is not measured.

    Attributes:
        accuracy, top5: shares of the test part, in [0, 1]; ``top5`` from six classes on.
        bytes: size of the model or engine file.
        latency_ms_p50, latency_ms_p99: of one request at batch 1, in milliseconds.
        throughput: samples per second in batches of ``batch_size``.
        int8_layers, weighted_layers: weighted layers that run in INT8, and all of them.
        device_memory_mib, memory_mib: memory of the device, and of a fresh process.
    """

    bytes: Measured = None
    latency_ms_p50: Measured = None
    latency_ms_p99: Measured = None
    throughput: Measured = None
    batch_size: Measured = None
    int8_layers: Measured = None
    weighted_layers: Measured = None
    backend: Text = ""
    device_memory_mib: Measured = None
    accuracy: Measured = None
    top5: Measured = None
    memory_mib: Measured = None

    def with_quality(self, *, accuracy: float, top5: float | None) -> ResultRow:
        """Return the row with its accuracy metrics.

        ``top5`` is None with few classes.
        """
        quality = {"accuracy": accuracy} | ({} if top5 is None else {"top5": top5})
        return self.model_copy(update=quality)

    def with_memory(self, mib: float | None) -> ResultRow:
        """Return the row with the memory of a fresh process."""
        return self.model_copy(update={"memory_mib": mib})

    def numbers(self) -> dict[str, float]:
        """Return what was measured, by name."""
        values = ((name, getattr(self, name)) for name in type(self).model_fields)
        return {name: float(value) for name, value in values if isinstance(value, int | float)}


Rows = Annotated[dict[str, ResultRow], BeforeValidator(objects)]
"""Rows by name; what is no row counts as not measured."""


def row_metrics(rows: Mapping[str, ResultRow], *, separator: str) -> dict[str, float]:
    """Return what was measured, by ``<row><separator><figure>``."""
    found = {}
    for row_name, row in rows.items():
        for name, value in row.numbers().items():
            found[f"{row_name}{separator}{name}"] = value
    return found


def rows_of_metrics(metrics: Mapping[str, float], *, separator: str) -> dict[str, ResultRow]:
    """Return the rows that ``row_metrics`` named."""
    figures: dict[str, dict[str, float]] = {}
    for metric, value in metrics.items():
        row_name, found, name = metric.partition(separator)
        if found:
            figures.setdefault(row_name, {})[name] = value
    return {name: ResultRow.model_validate(values) for name, values in figures.items()}


class LatencyPercentiles(Record):
    """Percentiles and mean of a latency, in milliseconds."""

    p50: Measured = None
    p90: Measured = None
    p99: Measured = None
    mean: Measured = None


class BatchTiming(Record):
    """The benchmark of an engine at one batch size; see ``qat_lib.engines.Latency``."""

    batch_size: int
    iterations: Measured = None
    end_to_end: LatencyPercentiles = LatencyPercentiles()
    throughput: Measured = None
    compute: LatencyPercentiles | None = None
    cuda_graph: bool = False
    clients: Measured = None


class ClassAccuracy(Record):
    """Accuracy on one class and its change against FP32, by row.

    None for a class without samples.
    """

    name: str | int = Field("", alias="class")
    samples: Measured = None
    accuracy: Mapping[str, Measured] = Field(default_factory=dict)
    change: Mapping[str, Measured] = Field(default_factory=dict)


class Agreement(Record):
    """Agreement of a row's outputs with FP32: labels and probabilities.

    The share of equal labels, and the differences of probabilities.
    """

    labels: Measured = None
    largest_difference: Measured = None
    mean_difference: Measured = None


class WorstSample(Record):
    """A sample whose probabilities differ much from FP32's.

    Its true label, and what the two give it.
    """

    index: Measured = None
    difference: Measured = None
    file: Text = ""
    label: str | int = "?"
    fp32: str | int | None = None
    engine: str | int | None = None


class FileCheck(Record):
    """The check of an engine file in a fresh process; see ``qat_lib.engines.check.EngineCheck``.

    Attributes:
        engines: the checks of all engines; this one then says whether all passed.
    """

    passed: Annotated[bool, BeforeValidator(lambda value: value is True)] = False
    message: Text = ""
    requests: Measured = None
    largest_difference: Measured = None
    bound: Measured = None
    label_agreement: Measured = None
    load_seconds: Measured = None
    memory_mib: Measured = None
    engines: Mapping[str, FileCheck] = Field(default_factory=dict)


def _object_or_none(value: object) -> object:
    return value if isinstance(value, Mapping | FileCheck) and value else None


class Measurements(Record):
    """All that was measured.

    ``confusion`` has a row for each label and a column for each prediction; ``speed`` are
    sentences on the INT8 engine's speed.
    """

    version: int = 1
    samples: Measured = None
    classes: Sequence[str] = ()
    rows: Rows = Field(default_factory=dict, alias="results")
    confusion: Mapping[str, Sequence[Sequence[int]]] = Field(default_factory=dict)
    per_class: Sequence[ClassAccuracy] = ()
    agreement: Mapping[str, Agreement] = Field(default_factory=dict)
    calibration_error: Mapping[str, Measured] = Field(default_factory=dict)
    worst_samples: Sequence[WorstSample] = ()
    latency: Mapping[str, Sequence[BatchTiming]] = Field(default_factory=dict)
    infrastructure_check: Annotated[FileCheck | None, BeforeValidator(_object_or_none)] = None
    speed: Sequence[str] = ()

    def row(self, name: str) -> ResultRow:
        """Return a row; an empty one where it was not measured."""
        return self.rows.get(name, ResultRow())


class Evaluation(StepFolder):
    """The measurements, and pictures of the samples that differ most from FP32."""

    STEP: ClassVar[str] = "evaluate"
    MEASUREMENTS: ClassVar[str] = "evaluation.json"
    PICTURES: ClassVar[str] = "**/*.png"

    def picture_file(self, name: str) -> Path:
        """Return where the picture of a sample lies."""
        return self.file(f"worst_samples/{name}")

    def measurements(self) -> Measurements:
        """Return what was measured."""
        return self.read(self.MEASUREMENTS, Measurements)

    def write_measurements(self, measurements: Measurements) -> None:
        """Write what was measured."""
        self.write(self.MEASUREMENTS, measurements.to_dict())
