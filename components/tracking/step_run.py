"""MLflow run of a step, selected by the environment.

On a cluster, a step opens its run in its own process. On one machine, the launcher records the run
after the step from its result in the store, so that steps do not spend seconds on MLflow.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from qat_lib.errors import TrackingError
from qatline.components.support.process import LAUNCHER_VARIABLE
from qatline.components.tracking.mlflow_run import MlflowRun
from qatline.components.tracking.pipeline_run import pipeline_run, source_tags
from qatline.components.tracking.store import open_client, probe, translated
from qatline.components.tracking.tracker import (
    RUN_ID_VARIABLE,
    URI_VARIABLE,
    StepTimes,
    StepTracker,
    tracking_mode,
)


@contextmanager
def step_run(step: str, *, warn: Callable[[str], None]) -> Iterator[StepTracker]:
    """Track a step while it runs in this process; an exception ends its run as FAILED.

    Within the block ``MLFLOW_RUN_ID`` is the step's run, for the model registry.

    Args:
        step: name of the step and of a new run.
        warn: receives one message if tracking is optional and fails.

    Raises:
        TrackingError: tracking is required and the store is unreachable or refuses.
    """
    mode = tracking_mode()
    if mode == "off" or os.environ.get(LAUNCHER_VARIABLE):
        if mode == "required":  # do not start a step that cannot be recorded
            probe(os.environ.get(URI_VARIABLE, ""))
        yield StepTracker()
        return
    given = os.environ.get(RUN_ID_VARIABLE)
    try:
        own, pipeline = open_run(step)
    except TrackingError as error:
        if mode == "required":
            raise
        warn(f"the step is not tracked: {error}")
        yield StepTracker()
        return
    status = "FAILED"
    os.environ[RUN_ID_VARIABLE] = own.run_id
    try:
        yield StepTracker(own, pipeline, warn=warn if mode == "optional" else None)
        status = "FINISHED"
    finally:
        if not given:
            del os.environ[RUN_ID_VARIABLE]
        try:
            own.end(status)
        except TrackingError as error:
            # Never replace an exception of the body.
            if mode == "required" and status == "FINISHED":
                raise
            warn(str(error))


def open_run(
    step: str, times: StepTimes | None = None, tags: Mapping[str, str] | None = None
) -> tuple[MlflowRun, MlflowRun | None]:
    """Open the run of a step, and that of its pipeline if there is one.

    See ``qatline.components.tracking.tracker`` for the variables that select them.

    Args:
        step: name of the step and of a new run.
        times: start and end of a step that has already ended.
        tags: tags of a new run, set at its creation.

    Raises:
        TrackingError: the store is unreachable or refuses.
    """
    client = open_client(os.environ.get(URI_VARIABLE, ""))
    with translated("the tracking run can't be opened"):
        if run_id := os.environ.get(RUN_ID_VARIABLE):
            client.update_run(run_id, status="RUNNING")
            client.set_tag(run_id, "qatline.step", step)
            parent = client.get_run(run_id).data.tags.get("mlflow.parentRunId")
        else:
            parent, experiment = pipeline_run(client)
            tags = {**source_tags(), "qatline.step": step, **(tags or {})}
            if parent:
                tags["mlflow.parentRunId"] = parent
            started = times.started if times else None
            run_id = client.create_run(experiment or "0", started, tags, step).info.run_id
    at = times.ended if times else None
    return MlflowRun(client, run_id, at=at), MlflowRun(client, parent, at=at) if parent else None
