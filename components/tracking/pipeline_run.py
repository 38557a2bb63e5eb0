"""MLflow run of a pipeline run, the parent of every step's run.

On one machine the launcher creates it. On a cluster nothing runs before the first step: any
step finds it by the id of the pipeline run, or creates it. The environment selects the run:

    MLFLOW_RUN_ID            the KFP backend's own MLflow plugin is on, and owns both runs
    QATLINE_PARENT_RUN_ID    the MLflow run itself
    QATLINE_PIPELINE_RUN_ID  the id of the pipeline run, such as the label pipeline/runid of a pod
    QATLINE_PIPELINE_NAME    name of the run (default: "pipeline run" and the id)
    QATLINE_USER             user that started it (default: the user of the process)

Two steps that start simultaneously may both create a run. A param of each run names the leading
run, and all agree on the run that names itself: a param can be written only once, which makes it a
compare-and-set. A registered model per pipeline run would be another one, as for the lock of a
promotion, but tracking must not require a model registry, and a killed step would leave the model.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from qat_lib.errors import TrackingError
from qatline.components.support.credentials import scrub
from qatline.components.tracking.mlflow_run import MlflowRun, Tags
from qatline.components.tracking.store import ensure_store, open_client, patient, translated
from qatline.components.tracking.tracked import DESCRIPTION_TAG
from qatline.components.tracking.tracker import (
    PARENT_VARIABLE,
    PIPELINE_RUN_VARIABLE,
    RUN_ID_VARIABLE,
    URI_VARIABLE,
    tracking_mode,
)

RUN_TAG = "qatline.pipeline_run"
"""Tag of the MLflow run with the id of the pipeline run."""

NAME_VARIABLE = "QATLINE_PIPELINE_NAME"
USER_VARIABLE = "QATLINE_USER"
_LEADER = "qatline.parent"
_ATTEMPTS = 20
_PAUSE = 0.05  # seconds, for each attempt before
_LONGEST_REASON = 2000  # characters


def find_or_create_parent(
    client: Any,
    experiment_id: str,
    pipeline_run_id: str,
    *,
    name: str = "",
    tags: Mapping[str, str] | None = None,
    start_time: int | None = None,
) -> str:
    """Return the MLflow run of a pipeline run; create it if it is missing.

    Concurrent calls of any number of processes return the same run.

    Args:
        client: an ``MlflowClient``.
        experiment_id: experiment of the run.
        pipeline_run_id: id of the pipeline run: KFP's, or the name of a run's folder.
        name: name of a new run; default: ``pipeline run`` and the beginning of the id.
        tags: tags of a new run.
        start_time: start of a new run, in milliseconds; default: now.

    Returns:
        The id of the MLflow run.

    Raises:
        TrackingError: the store is unreachable or refuses.
    """

    def create() -> None:
        named = name or f"pipeline run {pipeline_run_id[:8]}"
        given = {**source_tags(), RUN_TAG: pipeline_run_id, **(tags or {})}
        safe = {tag: scrub(str(text)) for tag, text in given.items()}
        patient(lambda: client.create_run(experiment_id, start_time, safe, named))

    with translated("the run of the pipeline can't be found or made"):
        for attempt in range(_ATTEMPTS):
            found = _candidates(client, experiment_id, pipeline_run_id)
            if not found:
                create()
                continue
            if leader := _elect(client, found):
                return leader
            time.sleep(random.uniform(0, _PAUSE * attempt))  # let concurrent elections finish
    raise TrackingError(
        f"the MLflow run of pipeline run {pipeline_run_id} can't be agreed on: expected one within "
        f"{_ATTEMPTS} attempts. Start the run again."
    )


def pipeline_run(client: Any) -> tuple[str | None, str | None]:
    """Return the MLflow run of the pipeline that the environment selects.

    Args:
        client: an ``MlflowClient``.

    Returns:
        Its id, None outside a pipeline run; and the id of its experiment, None if the environment
        names none.

    Raises:
        TrackingError: the store is unreachable or refuses.
    """
    experiment = _experiment(client)
    if parent := os.environ.get(PARENT_VARIABLE):
        return parent, experiment or client.get_run(parent).info.experiment_id
    if not (key := os.environ.get(PIPELINE_RUN_VARIABLE)):
        return None, experiment
    experiment = experiment or ensure_store(client.tracking_uri, "qatline")
    name = os.environ.get(NAME_VARIABLE, "")
    return find_or_create_parent(client, experiment, key, name=name), experiment


def close_parent(
    pipeline_run_id: str, status: str, *, reason: str = "", tags: Mapping[str, str] | None = None
) -> str | None:
    """Close the MLflow run of a pipeline run, and the children that pods left open.

    The environment selects the store, as for a step. A run owned by the KFP backend's plugin is
    left to the plugin. Nothing is done if the run was never recorded.

    Args:
        pipeline_run_id: id of the pipeline run: KFP's, or the name of a run's folder.
        status: ``FINISHED``, ``FAILED`` or ``KILLED``.
        reason: reason of the failure, for the description.
        tags: tags to add.

    Returns:
        The id of the MLflow run, None without one.

    Raises:
        TrackingError: the store is unreachable or refuses.
    """
    if tracking_mode() == "off" or os.environ.get(RUN_ID_VARIABLE):
        return None
    client = open_client(os.environ.get(URI_VARIABLE, ""))
    with translated("the run of the pipeline can't be closed"):
        experiment = _experiment(client) or ensure_store(client.tracking_uri, "qatline")
        if not _candidates(client, experiment, pipeline_run_id):
            return None
        run = MlflowRun(client, find_or_create_parent(client, experiment, pipeline_run_id))
        # A step still open when the pipeline has ended cannot have finished.
        left = "KILLED" if status == "KILLED" else "FAILED"
        close_children(client, experiment, run.run_id, left)
    if tags:
        run.record(Tags(tags))
    if reason:
        run.record(Tags({DESCRIPTION_TAG: f"{status}: {reason[:_LONGEST_REASON]}"}))
    run.end(status)
    return run.run_id


def children(client: Any, experiment: str, parent: str) -> Sequence[Any]:
    """Return the runs of a pipeline's steps."""
    wanted = f"tags.`mlflow.parentRunId` = '{parent}'"
    found: Sequence[Any] = client.search_runs([experiment], filter_string=wanted, max_results=1000)
    return found


def close_children(client: Any, experiment: str, parent: str, status: str) -> None:
    """Close the runs of steps left open by killed processes."""
    for child in children(client, experiment, parent):
        if child.info.status == "RUNNING":
            client.set_terminated(child.info.run_id, status)


def source_tags() -> dict[str, str]:
    """Return the tags of a new run: user and source.

    MLflow's default tags contain the URL of the git repository, possibly with a token.
    """
    from mlflow.tracking.context.registry import resolve_tags

    tags = {name: scrub(str(value)) for name, value in resolve_tags().items()}
    if user := os.environ.get(USER_VARIABLE):
        tags["mlflow.user"] = user
    # MLflow's default source is the script of the process.
    return {**tags, "mlflow.source.name": "qatline", "mlflow.source.type": "JOB"}


def _experiment(client: Any) -> str | None:
    if experiment := os.environ.get("MLFLOW_EXPERIMENT_ID"):
        return experiment
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME")
    return ensure_store(client.tracking_uri, name) if name else None


def _candidates(client: Any, experiment: str, pipeline_run_id: str) -> list[Any]:
    wanted = f"tags.`{RUN_TAG}` = '{pipeline_run_id}'"
    found = patient(lambda: client.search_runs([experiment], filter_string=wanted, max_results=100))
    # The search also returns runs of steps with the tag.
    return [run for run in found if "mlflow.parentRunId" not in run.data.tags]


def _elect(client: Any, candidates: Sequence[Any]) -> str | None:
    """Return the leading run, or None if the election must be repeated.

    A run that names itself leads permanently. It does so only after all other existing runs name
    it: of two runs created simultaneously, the second election sees the first run.
    """
    named = {run.info.run_id: run.data.params.get(_LEADER) for run in candidates}
    leader = next((run_id for run_id, name in named.items() if name == run_id), None)
    free = sorted(run_id for run_id, name in named.items() if name is None)
    if leader is None and free:
        # A deterministic choice: concurrent elections propose the same run. It names itself last.
        if not all(_name(client, run_id, free[0]) for run_id in (*free[1:], free[0])):
            return None
        leader = free[0]
    # The others lost, were created before their step saw the leader, or name a run that is gone.
    _withdraw(client, [run_id for run_id in named if run_id != leader])
    return leader


def _name(client: Any, run_id: str, leader: str) -> bool:
    """Write the leader into a run, permanently; return whether the run names it."""
    from mlflow.exceptions import MlflowException

    try:
        patient(lambda: client.log_param(run_id, _LEADER, leader))
    except MlflowException:  # another process named one, or removed the run
        found = patient(lambda: client.get_run(run_id))
        return bool(found.data.params.get(_LEADER) == leader)
    return True


def _withdraw(client: Any, run_ids: Sequence[str]) -> None:
    """Remove runs that do not lead; other processes may do so as well."""
    from mlflow.exceptions import MlflowException

    for run_id in run_ids:
        with contextlib.suppress(MlflowException):
            patient(partial(client.delete_run, run_id))
