"""Summaries and details of runs, read from their folders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from qat_lib.errors import StorageError
from qatline.components.artifacts.evaluation import ResultRow
from qatline.components.artifacts.variants import CANDIDATE
from qatline.pipelines.config.run_config import RunConfig
from qatline.pipelines.run.event_tail import EventTail
from qatline.pipelines.run.folder import RunFolder, flatten_config, run_folders
from qatline.pipelines.run.progress import RunProgress
from qatline.pipelines.run.record import RunRecord, now, read_record
from qatline.pipelines.run.result import GateResult, RunResult
from qatline.pipelines.steps import STEP_ARTIFACTS

_PLACES = ("output", "cluster.", "tracking.")


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """Summary of a run for one line.

    Attributes:
        run_id: name of the folder.
        path: path of the folder.
        status: ``running``, ``finished``, ``failed``, ``interrupted``, or ``damaged`` for
            unreadable files.
        created: start in ISO 8601, UTC.
        seconds: duration until the end or until now, including pauses of a resumed run.
        attempts: number of attempts, 1 without a resumption.
        metric: name of the primary metric.
        value: its value for the QAT INT8 engine.
        value_text: the same with its unit.
        verdict: ``promote`` or ``reject``, or ``nothing new``.
        problem: reason for ``damaged``.
    """

    run_id: str
    path: str
    status: str
    created: str | None = None
    seconds: float | None = None
    attempts: int = 1
    metric: str = ""
    value: float | None = None
    value_text: str = ""
    verdict: str | None = None
    problem: str | None = None

    @classmethod
    def of(cls, folder: RunFolder) -> RunSummary:
        """Return the summary of a run, including damaged ones."""
        damaged = cls(run_id=folder.run_id, path=str(folder.path), status="damaged")
        try:
            record, result = folder.settle(), read_result(folder)
        except StorageError as error:
            return replace(damaged, problem=str(error))
        row = result.rows.get(CANDIDATE, ResultRow())
        return replace(
            damaged,
            status=record.status,
            created=record.created,
            seconds=_seconds(record),
            attempts=record.attempts,
            metric=row.metric.name,
            value=row.value,
            value_text="" if row.value is None else row.metric.text(row.value),
            verdict=result.verdict,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class StepSummary:
    """A step with its ``status`` from the events, or ``waiting`` before its start."""

    name: str
    status: str
    seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class RunDetails:
    """Details of a run.

    Attributes:
        summary: summary of the run.
        config: values that differ from the default, by ``section.key``.
        steps: steps of its pipeline in order, with their state in the last attempt.
        errors: messages of the failed steps.
        result: result of the run; empty before its end.
        paths: existing paths by name.
    """

    summary: RunSummary
    config: Mapping[str, Any]
    steps: Sequence[StepSummary]
    errors: Sequence[str]
    result: RunResult
    paths: Mapping[str, Path] = field(default_factory=dict)

    @classmethod
    def of(cls, folder: RunFolder) -> RunDetails:
        """Return the details of a run.

        Raises:
            ConfigError: its config is not valid in this version.
            StorageError: one of its files is damaged.
        """
        summary = RunSummary.of(folder)
        if summary.problem is not None:
            raise StorageError(summary.problem)
        progress = run_progress(folder)
        return cls(
            summary=summary,
            config=changed_values(folder.config()),
            steps=_steps(progress, summary.status),
            errors=[str(error.get("message")) for error in progress.errors],
            result=read_result(folder),
            paths=_paths(folder),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        result = self.result.to_dict()
        return {
            **self.summary.to_dict(),
            "config": dict(self.config),
            "steps": [asdict(step) for step in self.steps],
            "errors": list(self.errors),
            "results": result.get("results", {}),
            "gate": result.get("gate", {}),
            "paths": {name: str(path) for name, path in self.paths.items()},
        }


def list_runs(output: Path) -> list[RunSummary]:
    """Return the runs in a folder, oldest first."""
    return [RunSummary.of(folder) for folder in run_folders(output)]


def read_result(folder: RunFolder) -> RunResult:
    """Return a run's result; empty while the run is unfinished.

    Raises:
        StorageError: the file is damaged.
    """
    if not folder.result_file.exists():
        return RunResult(run_id=folder.run_id, run_dir=str(folder.path), gate=GateResult())
    try:
        return RunResult.model_validate(read_record(folder.result_file))
    except ValueError as error:
        raise StorageError(
            f"{folder.result_file} is of another version of qatline: {error}"
        ) from error


def changed_values(config: RunConfig) -> dict[str, Any]:
    """Return a config's non-default values by ``section.key``.

    The location of the run (``output``, ``cluster``, ``tracking``) is omitted.
    """
    default = flatten_config(RunConfig().to_dict())
    changed = {}
    for key, value in flatten_config(config.to_dict()).items():
        if not key.startswith(_PLACES) and default.get(key) != value:
            changed[key] = value
    return changed


def _seconds(record: RunRecord) -> float | None:
    """Return a run's duration until its end or now; None if its start is unknown."""
    try:
        begin = datetime.fromisoformat(record.created)
        end = datetime.fromisoformat(record.ended or now())
        return (end - begin).total_seconds()
    except (TypeError, ValueError):
        return None


def run_progress(folder: RunFolder) -> RunProgress:
    """Return the progress of a run's last attempt from its events."""
    progress = RunProgress.of(list(STEP_ARTIFACTS))
    for event in EventTail(path=folder.events_file).read():
        # A resumed run reports its steps again: discard errors of earlier attempts.
        if event.get("event") == "pipeline_started":
            progress = RunProgress.of([])
        progress.apply(event)
    return progress


def _steps(progress: RunProgress, status: str) -> list[StepSummary]:
    """Return the steps; unfinished steps have the status of the ended run."""
    found = []
    for name in progress.expected:
        step = progress.steps.get(name)
        if step is None:
            found.append(StepSummary(name=name, status="waiting"))
            continue
        left = step.status == "running" and status != "running"
        found.append(
            StepSummary(name=name, status=status if left else step.status, seconds=step.seconds)
        )
    return found


def _paths(folder: RunFolder) -> dict[str, Path]:
    places = {
        "run": folder.path,
        "config": folder.config_file,
        "log": folder.log_file,
        "artifacts": folder.artifacts_dir,
        "report": folder.report_file,
    }
    return {name: path for name, path in places.items() if path.exists()}
