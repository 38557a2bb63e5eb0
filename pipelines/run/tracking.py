"""The MLflow run of a pipeline run, with one child per step.

A step that is executed opens its own child run, through the environment that is set here. A step
that is reused stays quick and imports no MLflow; its child run is written here, from what the step
left in the store, so that every run looks whole. A child that a killed step left RUNNING is closed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from qat_lib.errors import TrackingError
from qatline.components.artifacts.evaluation import row_metrics
from qatline.components.runtime.steps import load_step
from qatline.components.store.directories import read_step_manifest
from qatline.components.support.events import emit
from qatline.components.tracking.database import database_uri
from qatline.components.tracking.mlflow_writer import MlflowWriter
from qatline.components.tracking.pipeline_run import children, close_children, find_or_create_parent
from qatline.components.tracking.step_run import step_run
from qatline.components.tracking.store import ensure_store, open_client, probe, translated
from qatline.components.tracking.tracked import (
    DESCRIPTION_TAG,
    environment_tags,
    flatten,
    log_outputs,
    log_settings,
)
from qatline.components.tracking.tracker import (
    MODE_VARIABLE,
    PARENT_VARIABLE,
    URI_VARIABLE,
    StepTimes,
)
from qatline.pipelines.config.run_config import RunConfig
from qatline.pipelines.run.collect import step_times
from qatline.pipelines.run.dead_runs import FOLDER_TAG, close_dead_runs
from qatline.pipelines.run.folder import RunFolder
from qatline.pipelines.run.record import TrackingRecord, read_tracking, write_json
from qatline.pipelines.run.result import FinishedStep, RunResult
from qatline.pipelines.run.tracking_watch import watched
from qatline.pipelines.steps import STEP_ARTIFACTS

_RUN_VARIABLE = "MLFLOW_RUN_ID"
_STATUS_TAG = "qatline.status"  # of a step that this launcher records


class ParentRun(Protocol):
    """What the launcher records about the whole run."""

    def finish(self, result: RunResult, artifacts: Mapping[str, Path]) -> RunResult:
        """Record reused steps, the final numbers and the main files.

        Return the result with where they are.
        """


class NullParentRun:
    """A run that is not tracked."""

    def finish(self, result: RunResult, _artifacts: Mapping[str, Path]) -> RunResult:
        """Return the result as it is."""
        return result


def default_uri(output: Path) -> str:
    """Return the runs' tracking URI: a SQLite file in ``output``."""
    return database_uri(output.absolute() / "mlflow.db")


@contextmanager
def open_parent_run(folder: RunFolder, config: RunConfig) -> Iterator[ParentRun]:
    """Open the parent run for the steps; close it after the body.

    Its id reaches the steps through the environment. A resumed run goes on in the MLflow run that
    it began with.

    Raises:
        TrackingError: The store can't be used, and ``tracking.required`` is true.
    """
    # A run of the caller's is not ours: the steps would all write into it.
    os.environ.pop(_RUN_VARIABLE, None)
    if os.environ.get(MODE_VARIABLE) == "off":
        yield NullParentRun()
        return
    try:
        run = open_record(folder, config)
    except TrackingError as error:
        if config.tracking.required:
            raise
        emit("warning", "", message=f"this run is not tracked: {error}")
        os.environ[MODE_VARIABLE] = "off"
        yield NullParentRun()
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
) -> MlflowParentRun:
    """Open a run's record in the store, the one that it has or a new one.

    The steps find it through the environment.

    Args:
        folder: the run.
        config: its config.
        start_time: when a new record began, in milliseconds; default: now.
        end_time: when its numbers were measured, in milliseconds; default: now.

    Raises:
        TrackingError: the store can't be reached or refuses.
    """
    output = folder.path.parent
    uri = config.tracking.uri or os.environ.get(URI_VARIABLE) or default_uri(output)
    # The child that writes the store's first tables must be this one; see ensure_store.
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
        writer = MlflowWriter(client, run_id, at=end_time)
        run = MlflowParentRun(client, writer, experiment, folder, config)
        run.begin()
    record = TrackingRecord(uri=uri, experiment_id=experiment, run_id=run_id)
    write_json(folder.tracking_file, record.to_dict())
    os.environ[PARENT_VARIABLE] = run_id
    return run


def _artifact_location(output: Path, uri: str) -> str | None:
    """Return where a new experiment keeps its artifacts; None leaves it to a server.

    A database says nothing of files: MLflow would put them into the working directory.
    """
    if uri.startswith(("http://", "https://", "databricks", "file:")):
        return None
    return (output / "mlflow-artifacts").absolute().as_uri()


def _reopened(client: Any, folder: RunFolder) -> str | None:
    """Return the run's record of an earlier attempt; None if the store has none."""
    from mlflow.exceptions import MlflowException

    if not folder.tracking_file.exists():
        return None
    run_id = read_tracking(folder.tracking_file).run_id
    try:
        client.update_run(run_id, status="RUNNING")
    except MlflowException as error:
        # The store was changed or emptied since: the run gets a new record there.
        if error.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            return None
        raise
    return run_id


class MlflowParentRun:
    """The record of a whole run."""

    def __init__(
        self,
        client: Any,
        writer: MlflowWriter,
        experiment: str,
        folder: RunFolder,
        config: RunConfig,
    ) -> None:
        self.uri: str = client.tracking_uri
        self._client = client
        self._writer = writer
        self._run_id = writer.run_id
        self._experiment = experiment
        self._folder = folder
        self._config = config

    def begin(self) -> None:
        """Record the run's dependencies; close an earlier attempt's open runs."""
        self._sweep("KILLED")
        close_dead_runs(self._client, self._experiment)
        values = self._config.to_dict()
        del values["cluster"]  # what pods would ask for; nothing of this run depends on it
        params = {
            name: value for key in values for name, value in flatten(values[key], key).items()
        }
        self._writer.log_params(params)
        self._writer.set_tags({FOLDER_TAG: str(self._folder.path), **environment_tags()})
        self._writer.log_artifact(self._folder.config_file)

    def finish(self, result: RunResult, artifacts: Mapping[str, Path]) -> RunResult:
        """Record reused steps, the final numbers and the main files.

        Return the result with where they are.
        """
        tracking = read_tracking(self._folder.tracking_file)
        result = result.model_copy(update={"tracking": tracking})
        try:
            probe(self.uri)
            with translated("the results can't be recorded"):
                self._record(result, artifacts)
        except TrackingError as error:
            if self._config.tracking.required:
                raise
            emit("warning", "", message=str(error))
        return result

    def close(self, status: str) -> None:
        """End the run and the children that a killed step left open."""
        try:
            probe(self.uri)
            with translated("the tracking run can't be closed"):
                self.end(status)
        except TrackingError as error:
            # What the run achieved, or why it failed, matters more than its record.
            emit("warning", "", message=str(error))

    def end(self, status: str, end_time: int | None = None) -> None:
        """End the run and the children that a killed step left open.

        Raises:
            TrackingError: the store is away or refuses.
        """
        self._sweep("KILLED" if status == "KILLED" else "FAILED")
        self._writer.end(status, end_time)

    def finished_steps(self) -> set[str]:
        """Return the names of the steps whose runs are complete."""
        finished = children(self._client, self._experiment, self._run_id, "FINISHED")
        return {child.data.tags.get("qatline.step", "") for child in finished}

    def _record(self, result: RunResult, artifacts: Mapping[str, Path]) -> None:
        known, times = self.finished_steps(), step_times(self._folder)
        for step in result.steps:
            # A step that was executed has its run already, unless the store was away meanwhile.
            if step.name not in known and STEP_ARTIFACTS[step.name] in artifacts:
                directory = artifacts[STEP_ARTIFACTS[step.name]]
                self._record_step(step, directory, times.get(step.name))
        self._writer.log_metrics(row_metrics(result.rows))
        if result.rows or result.verdict:
            self._writer.set_tags({"qatline.verdict": str(result.verdict)})
        if result.nothing_new:
            self._writer.set_tags({DESCRIPTION_TAG: f"Nothing new: {result.nothing_new}"})
        self._client.log_dict(self._run_id, result.to_dict(), self._folder.result_file.name)

    def _record_step(self, step: FinishedStep, directory: Path, times: StepTimes | None) -> None:
        """Write the run of a step from what it left in the store."""
        self._remove_unfinished(step.name)
        definition, manifest = load_step(step.name), read_step_manifest(directory)
        sections = {key: getattr(self._config, key) for key in definition.keyed}
        with step_run(step.name, warn=_warn, times=times) as tracker:
            tracker.set_tags({_STATUS_TAG: step.status})
            log_settings(tracker, sections, seed=self._config.seed, key=manifest.key)
            log_outputs(tracker, step.name, directory, manifest)

    def _remove_unfinished(self, step: str) -> None:
        """Remove runs of a step that an interrupted record left."""
        for status in ("RUNNING", "FAILED", "KILLED"):
            for child in children(self._client, self._experiment, self._run_id, status):
                if child.data.tags.get("qatline.step") == step and _STATUS_TAG in child.data.tags:
                    self._client.delete_run(child.info.run_id)

    def _sweep(self, status: str) -> None:
        close_children(self._client, self._experiment, self._run_id, status)


def _description(config: RunConfig) -> str:
    """Return what the run is about, before it has results."""
    data = config.data.path or config.data.name or config.data.kind
    return f"{config.model.name} on {data}, seed {config.seed}."


def _warn(message: str) -> None:
    emit("warning", "", message=message)
