"""Output of evaluate: each engine's measurements and difference from FP32."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field

from qatline.components.artifacts.comparison import ChampionComparison, ChanceTest
from qatline.components.artifacts.folder import StepFolder
from qatline.components.artifacts.metric import ACCURACY, Metric
from qatline.components.artifacts.record import Measured, Record, Text, objects
from qatline.components.artifacts.result_row import ResultRow as ResultRow

Rows = Annotated[dict[str, ResultRow], BeforeValidator(objects)]
"""Rows by name; entries of other types are ignored."""


METRIC_TAG = "qatline.metric"
"""Tag of an MLflow run with the description of its primary metric, in JSON."""


def primary_metric(rows: Mapping[str, ResultRow]) -> Metric:
    """Return the primary metric of the rows."""
    return next((row.metric for row in rows.values() if row.quality), ACCURACY)


def row_metrics(rows: Mapping[str, ResultRow], *, separator: str = "/") -> dict[str, float]:
    """Return the measurements by ``<row>/<figure>``, or with another separator."""
    found = {}
    for row_name, row in rows.items():
        for name, value in row.numbers().items():
            found[f"{row_name}{separator}{name}"] = value
    return found


def rows_of_metrics(
    metrics: Mapping[str, float], metric: Metric = ACCURACY
) -> dict[str, ResultRow]:
    """Return the rows from the names of ``row_metrics``; other metrics are ignored.

    Args:
        metrics: values by name.
        metric: the primary metric; others than this one and measurements are ignored.
    """
    figures: dict[str, dict[str, Any]] = {}
    for name, value in metrics.items():
        row_name, found, figure = name.partition("/")
        if found and figure == metric.name:
            quality = {"quality": {figure: value}, "metric": metric}
            figures.setdefault(row_name, {}).update(quality)
        elif found and figure in ResultRow.model_fields:
            figures.setdefault(row_name, {})[figure] = value
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


class GroupQuality(Record):
    """Primary metric on one class or other group, by row; None without samples."""

    name: str | int = ""
    samples: Measured = None
    values: Mapping[str, Measured] = Field(default_factory=dict)


class Agreement(Record):
    """Agreement of a row's outputs with FP32.

    ``same`` is the share of equal predictions; None for tasks whose predictions are numbers.
    """

    same: Measured = None
    largest_difference: Measured = None
    mean_difference: Measured = None


class WorstSample(Record):
    """A sample with a large difference from FP32: target and both predictions in words."""

    index: Measured = None
    difference: Measured = None
    file: Text = ""
    label: str | int = "?"
    fp32: str | int | None = None
    engine: str | int | None = None


class FileCheck(Record):
    """Check of an engine file in a fresh process; see ``qat_lib.engines.check.EngineCheck``.

    Attributes:
        samples: number of real inputs among the requests.
        first_layer: first layer that deviates from the reference, if any.
        engines: checks of all engines; ``passed`` then covers all of them.
    """

    passed: Annotated[bool, BeforeValidator(lambda value: value is True)] = False
    message: Text = ""
    requests: Measured = None
    largest_difference: Measured = None
    bound: Measured = None
    label_agreement: Measured = None
    load_seconds: Measured = None
    memory_mib: Measured = None
    samples: Measured = None
    first_layer: Text = ""
    engines: Mapping[str, FileCheck] = Field(default_factory=dict)


def _object_or_none(value: object) -> object:
    return value if isinstance(value, Mapping | FileCheck) and value else None


class Measurements(Record):
    """All measurements of an evaluation.

    ``metrics`` describes the task's metrics, the primary one first, and ``details`` contains the
    task's own results by row. ``speed`` contains sentences on the INT8 engine's speed.
    ``comparison`` requires a registry. ``identity`` is unique per evaluation.
    """

    version: int = 1
    samples: Measured = None
    metrics: Sequence[Metric] = (ACCURACY,)
    rows: Rows = Field(default_factory=dict, alias="results")
    groups: Sequence[GroupQuality] = ()
    details: Mapping[str, Mapping[str, Any]] = Field(default_factory=dict)
    chance: ChanceTest | None = None
    agreement: Mapping[str, Agreement] = Field(default_factory=dict)
    worst_samples: Sequence[WorstSample] = ()
    latency: Mapping[str, Sequence[BatchTiming]] = Field(default_factory=dict)
    infrastructure_check: Annotated[FileCheck | None, BeforeValidator(_object_or_none)] = None
    comparison: ChampionComparison | None = None
    identity: Text = ""
    speed: Sequence[str] = ()

    def row(self, name: str) -> ResultRow:
        """Return a row; an empty one if it was not measured."""
        return self.rows.get(name, ResultRow())


class Evaluation(StepFolder):
    """Measurements, and pictures of the samples with the largest difference from FP32."""

    STEP: ClassVar[str] = "evaluate"
    MEASUREMENTS: ClassVar[str] = "evaluation.json"
    PICTURES: ClassVar[str] = "**/*.png"

    def picture_file(self, name: str) -> Path:
        """Return the path of a sample's picture."""
        return self.file(f"worst_samples/{name}")

    def measurements(self) -> Measurements:
        """Return the measurements."""
        return self.read(self.MEASUREMENTS, Measurements)

    def write_measurements(self, measurements: Measurements) -> None:
        """Write the measurements."""
        self.write(self.MEASUREMENTS, measurements.to_dict())
