"""Synchronization of a run's folder with MLflow, after an outage of the store."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from qatline.pipelines.config.run_config import RunConfig, build_config
from qatline.pipelines.run.collect import finished_steps, link_artifacts
from qatline.pipelines.run.event_tail import EventTail
from qatline.pipelines.run.folder import RunFolder
from qatline.pipelines.run.overview import read_result
from qatline.pipelines.run.record import TrackingRecord, write_json
from qatline.pipelines.run.result import FinishedStep
from qatline.pipelines.run.tracking import open_record
from qatline.pipelines.steps import STEP_ARTIFACTS

_STATUS = {"finished": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}


@dataclass(frozen=True, kw_only=True)
class SyncedRun:
    """Changes made by a synchronization.

    Attributes:
        run_id: name of the run's folder.
        tracking: location of the record.
        recorded: steps added to the store, in order.
        present: steps already in the store.
    """

    run_id: str
    tracking: TrackingRecord
    recorded: tuple[str, ...]
    present: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "run_id": self.run_id,
            "tracking": self.tracking.to_dict(),
            "recorded": list(self.recorded),
            "present": list(self.present),
        }


def sync_run(folder: RunFolder, *, uri: str | None = None) -> SyncedRun:
    """Record the results of a run that the store lacks.

    Existing records are not changed: the function is idempotent.

    Args:
        folder: a run that has ended, with any status.
        uri: the store; default: that of the run's config, else ``MLFLOW_TRACKING_URI``, else the
            SQLite file in the folder of the runs.

    Raises:
        ConfigError: ``uri`` is not the address of a store, or contains credentials.
        StorageError: the run is active in another process, or one of its files is damaged.
        TrackingError: the store cannot be reached or refuses.
    """
    record = folder.settle()
    with folder.hold():
        config = _required(folder.config(), uri)
        artifacts = link_artifacts(folder, folder.attempt_dir(record.attempts))
        result = read_result(folder)
        steps: dict[str, FinishedStep] = {}
        # A later attempt's event replaces that of an earlier one.
        for step in finished_steps(EventTail(path=folder.events_file).read()):
            if STEP_ARTIFACTS.get(step.name) in artifacts:
                steps[step.name] = step
        run = open_record(
            folder,
            config,
            start_time=_milliseconds(record.created),
            end_time=_milliseconds(record.ended),
        )
        recorded = run.steps.record(steps.values(), artifacts)
        done = run.finish(result.model_copy(update={"steps": list(steps.values())}), artifacts)
        run.end(_STATUS.get(record.status, "KILLED"))
        # A failed run has no result, whose presence marks success.
        if folder.result_file.exists():
            whole = result.model_copy(update={"tracking": done.tracking})
            write_json(folder.result_file, whole.to_dict())
    return SyncedRun(
        run_id=folder.run_id,
        tracking=done.tracking or TrackingRecord(),
        recorded=tuple(recorded),
        present=tuple(name for name in steps if name not in recorded),
    )


def _required(config: RunConfig, uri: str | None) -> RunConfig:
    """Return a config with required tracking: failures of the store become errors."""
    values = config.to_dict()
    values["tracking"]["required"] = True
    if uri is not None:
        values["tracking"]["uri"] = uri
    return build_config(values, source="--tracking-uri")


def _milliseconds(time: str | None) -> int | None:
    """Return an ISO 8601 time in milliseconds since 1970; None if it is missing or invalid."""
    try:
        return int(datetime.fromisoformat(time or "").timestamp() * 1000)
    except ValueError:
        return None
