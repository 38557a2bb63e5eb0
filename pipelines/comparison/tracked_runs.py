"""Runs of the pipeline as recorded in MLflow, on one machine or a cluster."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from qat_lib.core.plan import QuantizationPlan
from qat_lib.errors import PlanError
from qatline.components.artifacts import Quantized, ResultRow
from qatline.components.artifacts.evaluation import METRIC_TAG, rows_of_metrics
from qatline.components.artifacts.metric import Metric, read_metric
from qatline.components.artifacts.variants import CANDIDATE
from qatline.components.step_table import STEPS
from qatline.components.support.credentials import scrub
from qatline.components.tracking.store import translated

Point = tuple[int, float]

_NONE = "-"
_IGNORED = ("output", "tracking.", "qatline.")


@dataclass(frozen=True, kw_only=True)
class TrackedRun:
    """Record of a run in MLflow.

    Attributes:
        name: name in the comparison.
        mlflow_id: id of the MLflow run.
        status: ``FINISHED``, ``FAILED``, ``KILLED`` or ``RUNNING``.
        started: start in ISO 8601, UTC.
        seconds: duration; None while it runs.
        verdict: verdict of the gate; ``-`` without one.
        params: settings by ``section.key``.
        rows: measurements by row.
        curves: points (epoch, value) by ``<step>/<figure>``; empty unless requested.
        plan: the quantization plan; None unless requested and available.
    """

    name: str
    mlflow_id: str
    status: str = ""
    started: str = ""
    seconds: float | None = None
    verdict: str = _NONE
    params: Mapping[str, str] = field(default_factory=dict)
    rows: Mapping[str, ResultRow] = field(default_factory=dict)
    curves: Mapping[str, Sequence[Point]] = field(default_factory=dict)
    plan: QuantizationPlan | None = None

    def row(self, name: str) -> ResultRow:
        """Return a row; an empty one if it was not measured."""
        return self.rows.get(name, ResultRow())

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, without curves and plan."""
        return {
            "name": self.name,
            "mlflow_id": self.mlflow_id,
            "status": self.status,
            "started": self.started,
            "seconds": self.seconds,
            "verdict": self.verdict,
            "metric": self.row(CANDIDATE).metric.name,
            "value": self.row(CANDIDATE).value,
            "params": dict(self.params),
            "results": {name: row.to_dict() for name, row in self.rows.items()},
        }


def read_tracked_run(
    client: Any, run_id: str, *, name: str = "", details: bool = False
) -> TrackedRun:
    """Read a run.

    Args:
        client: an ``MlflowClient``.
        run_id: id of the MLflow run.
        name: name of the result; default: its name in MLflow.
        details: whether to read curves and plan.

    Raises:
        TrackingError: the store is unreachable, or the run does not exist.
    """
    with translated(f"run {name or run_id} can't be read from {scrub(client.tracking_uri)}"):
        run = client.get_run(run_id)
        data, info = run.data, run.info
        ended = info.end_time
        metric = read_metric(data.tags.get(METRIC_TAG, ""))
        moment = datetime.fromtimestamp(info.start_time / 1000, timezone.utc)
        return TrackedRun(
            name=name or info.run_name,
            mlflow_id=run_id,
            status=info.status,
            started=moment.isoformat(timespec="seconds"),
            seconds=None if ended is None else (ended - info.start_time) / 1000,
            verdict=data.tags.get("qatline.verdict", _NONE),
            params=data.params,
            rows=rows_of_metrics(data.metrics, metric),
            curves=_curves(client, run_id, data.metrics, metric) if details else {},
            plan=_plan(client, run_id) if details else None,
        )


def differing_params(runs: Sequence[TrackedRun]) -> list[str]:
    """Return the names of settings that differ between the runs."""
    names: set[str] = set()
    for run in runs:
        names.update(name for name in run.params if not name.startswith(_IGNORED))
    return [name for name in sorted(names) if len({run.params.get(name) for run in runs}) > 1]


def plan_differences(runs: Sequence[TrackedRun]) -> dict[str, list[str]]:
    """Return the differences of each plan from the first run's plan, by run.

    Lines are those of ``QuantizationPlan.diff``. Runs without a plan are omitted.
    """
    first = runs[0].plan if runs else None
    found = {}
    for run in runs[1:]:
        if first is not None and run.plan is not None:
            found[run.name] = first.diff(run.plan)
    return found


def _curves(
    client: Any, run_id: str, metrics: Mapping[str, float], metric: Metric
) -> dict[str, list[Point]]:
    curves = {}
    for step in STEPS:
        for figure in (metric.name, f"val_{metric.name}", "loss", "val_loss"):
            name = f"{step.name}/{figure}"
            if name in metrics:
                history = client.get_metric_history(run_id, name)
                curves[name] = sorted((point.step, point.value) for point in history)
    return curves


def _plan(client: Any, run_id: str) -> QuantizationPlan | None:
    """Return the run's plan, from the artifacts of the run or of its step."""
    names = {file.path for file in client.list_artifacts(run_id)}
    if Quantized.PLAN not in names:
        return None
    with tempfile.TemporaryDirectory() as folder:
        path = client.download_artifacts(run_id, Quantized.PLAN, folder)
        try:
            return QuantizationPlan.load(path)
        except PlanError:  # of another version
            return None
