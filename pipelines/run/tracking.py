"""MLflow run of a local pipeline run; ``step_records`` writes those of its steps."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from qat_lib.errors import QatlineError, TrackingError
from qatline.components.artifacts.evaluation import METRIC_TAG, primary_metric, row_metrics
from qatline.components.support.events import emit
from qatline.components.tracking.database import database_uri
from qatline.components.tracking.mlflow_run import Artifact, Metrics, MlflowRun, Params, Tags
from qatline.components.tracking.pipeline_run import close_children, find_or_create_parent
from qatline.components.tracking.store import ensure_store, open_client, probe, translated
from qatline.components.tracking.tracked import DESCRIPTION_TAG, environment_tags, flatten
from qatline.components.tracking.tracker import (
    MODE_VARIABLE,
    PARENT_VARIABLE,
    RUN_ID_VARIABLE,
    URI_VARIABLE,
)
from qatline.pipelines.config.run_config import RunConfig
from qatline.pipelines.run.folder import RunFolder
from qatline.pipelines.run.record import TrackingRecord, read_tracking, write_json
from qatline.pipelines.run.result import RunResult
from qatline.pipelines.run.step_records import StepRecords
from qatline.pipelines.run.tracking_watch import watched

FOLDER_TAG = "qatline.run_dir"
"""Tag of an MLflow run with the run's folder on its machine."""


def default_uri(output: Path) -> str:
    """Return the runs' tracking URI: a SQLite file in ``output``."""
    return database_uri(output.absolute() / "mlflow.db")


@contextmanager
def open_parent_run(folder: RunFolder, config: RunConfig) -> Iterator[ParentRun | None]:
    """Open the MLflow run of a run and close it after the body; yield None without tracking.

    A resumed run continues its original MLflow run.

    Raises:
        TrackingError: the store is unusable and ``tracking.required`` is true.
    """
    # Ignore a run of the caller: all steps would be recorded in it.
    os.environ.pop(RUN_ID_VARIABLE, None)
    if os.environ.get(MODE_VARIABLE) == "off":
        yield None
        return
    try:
        run = open_record(folder, config)
    except TrackingError as error:
        if config.tracking.required:
            raise
        emit("warning", "", message=f"this run is not tracked: {error}")
        os.environ[MODE_VARIABLE] = "off"
        yield None
        return
    status = "FAILED"
    try:
        with watched(run.uri, required=config.tracking.required):
            yield run
        status = "FINISHED"
    except (SystemExit, KeyboardInterrupt):
        status = "KILLED"
        raise
    finally:
        run.close(status)


def open_record(
    folder: RunFolder,
    config: RunConfig,
    *,
    start_time: int | None = None,
    end_time: int | None = None,
) -> ParentRun:
    """Open a run's existing record in the store or a new one, and set it in the environment.

    Args:
        folder: the run.
        config: its config.
        start_time: start of a new record in milliseconds; default: now.
        end_time: time of its metrics and end in milliseconds; default: now.

    Raises:
        TrackingError: the store cannot be reached or refuses.
    """
    output = folder.path.parent
    uri = config.tracking.uri or os.environ.get(URI_VARIABLE) or default_uri(output)
    # The launcher must create the store's tables before any step; see ensure_store.
    experiment = ensure_store(uri, config.tracking.experiment, _artifact_location(output, uri))
    os.environ[URI_VARIABLE] = uri
    os.environ["MLFLOW_EXPERIMENT_ID"] = experiment
    os.environ[MODE_VARIABLE] = "required" if config.tracking.required else "optional"
    client = open_client(uri)
    with translated("the tracking run can't be opened"):
        run_id = _reopened(client, folder) or find_or_create_parent(
            client,
            experiment,
            folder.run_id,
            name=folder.run_id,
            tags={DESCRIPTION_TAG: _description(config)},
            start_time=start_time,
        )
        run = ParentRun(client, MlflowRun(client, run_id, at=end_time), experiment, folder, config)
        run.begin()
    record = TrackingRecord(uri=uri, experiment_id=experiment, run_id=run_id)
    write_json(folder.tracking_file, record.to_dict())
    os.environ[PARENT_VARIABLE] = run_id
    return run


def _artifact_location(output: Path, uri: str) -> str | None:
    """Return the artifact location of a new experiment; None leaves it to a server.

    For a database, MLflow would use the working directory.
    """
    if uri.startswith(("http://", "https://", "databricks", "file:")):
        return None
    return (output / "mlflow-artifacts").absolute().as_uri()


def _reopened(client: Any, folder: RunFolder) -> str | None:
    """Return the run's record of an earlier attempt, or None if the store has none."""
    from mlflow.exceptions import MlflowException

    if not folder.tracking_file.exists():
        return None
    run_id = read_tracking(folder.tracking_file).run_id
    try:
        client.update_run(run_id, status="RUNNING")
    except MlflowException as error:
        # The store was replaced or emptied: create a new record.
        if error.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            return None
        raise
    return run_id


class ParentRun:
    """Record of a whole run.

    Args:
        client: an ``MlflowClient``.
        run: the run in MLflow.
        experiment: id of its experiment.
        folder: folder of the run.
        config: config of the run.
    """

    def __init__(
        self, client: Any, run: MlflowRun, experiment: str, folder: RunFolder, config: RunConfig
    ) -> None:
        self.uri: str = client.tracking_uri
        self.steps = StepRecords(client, run, experiment, folder, config)
        self._client = client
        self._run = run
        self._experiment = experiment
        self._folder = folder
        self._config = config

    def begin(self) -> None:
        """Record the run's dependencies; close an earlier attempt's open runs."""
        close_children(self._client, self._experiment, self._run.run_id, "KILLED")
        close_dead_runs(self._client, self._experiment)
        values = self._config.to_dict()
        del values["cluster"]  # resources of pods, without effect on a local run
        params = {
            name: value for key in values for name, value in flatten(values[key], key).items()
        }
        self._run.record(Params(params))
        self._run.record(Tags({FOLDER_TAG: str(self._folder.path), **environment_tags()}))
        self._run.record(Artifact(self._folder.config_file))

    def recording(self, outputs: Path) -> AbstractContextManager[None]:
        """Return a context that records each step at its end."""
        return self.steps.following(outputs)

    def finish(self, result: RunResult, artifacts: Mapping[str, Path]) -> RunResult:
        """Record the remaining steps and final metrics; return the result with its location."""
        tracking = read_tracking(self._folder.tracking_file)
        result = result.model_copy(update={"tracking": tracking})
        try:
            probe(self.uri)
            with translated("the results can't be recorded"):
                self.steps.record(result.steps, artifacts)
                self._record(result)
        except TrackingError as error:
            if self._config.tracking.required:
                raise
            emit("warning", "", message=str(error))
        return result

    def close(self, status: str) -> None:
        """End the run and its unfinished steps; failures are warnings."""
        try:
            probe(self.uri)
            with translated("the tracking run can't be closed"):
                if status != "FINISHED":
                    self.steps.record_stopped(status)
                self.end(status)
        except QatlineError as error:
            # A failed record must not replace the result or the error of the run.
            emit("warning", "", message=str(error))

    def end(self, status: str) -> None:
        """End the run and the records of interrupted steps.

        Raises:
            TrackingError: the store is unreachable or refuses.
        """
        left = "KILLED" if status == "KILLED" else "FAILED"
        close_children(self._client, self._experiment, self._run.run_id, left)
        self._run.end(status)

    def _record(self, result: RunResult) -> None:
        self._run.record(Metrics(row_metrics(result.rows)))
        if result.rows or result.verdict:
            metric = primary_metric(result.rows).model_dump_json()
            tags = {"qatline.verdict": str(result.verdict), METRIC_TAG: metric}
            self._run.record(Tags(tags))
        if result.nothing_new:
            self._run.record(Tags({DESCRIPTION_TAG: f"Nothing new: {result.nothing_new}"}))
        self._client.log_dict(self._run.run_id, result.to_dict(), self._folder.result_file.name)


def _description(config: RunConfig) -> str:
    """Return a description of the run before it has results."""
    data = config.data.path or config.data.name or config.data.kind
    return f"{config.model.name} on {data}, seed {config.seed}."


def close_dead_runs(client: Any, experiment: str) -> None:
    """Close an experiment's runs with status RUNNING and a terminated process."""
    wanted = f"attributes.status = 'RUNNING' and tags.`{FOLDER_TAG}` LIKE '/%'"
    for run in client.search_runs([experiment], filter_string=wanted, max_results=1000):
        folder = RunFolder(path=Path(run.data.tags[FOLDER_TAG]))
        # Folders of other machines do not exist here: their runs are left alone.
        if folder.record_file.is_file() and folder.settle().status != "running":
            close_children(client, experiment, run.info.run_id, "KILLED")
            client.set_terminated(run.info.run_id, "KILLED")
