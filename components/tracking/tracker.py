"""Tracking of a step as the step sees it, and the environment that configures it.

The environment is the contract, the same that the MLflow plugin of the KFP backend follows:

    QATLINE_TRACKING         off | optional | required. Default: required when
                             MLFLOW_TRACKING_URI is set, else off
    MLFLOW_TRACKING_URI      the tracking store
    MLFLOW_RUN_ID            the run that the backend's plugin made for this task: it is resumed, and
                             its parent is the run of the whole pipeline
    QATLINE_PARENT_RUN_ID    else the run of the whole pipeline: a child of it is made
    QATLINE_PIPELINE_RUN_ID  else the id of the pipeline run, on a cluster the one of KFP: its run is
                             found, or made by the first step; see qatline.components.tracking.pipeline_run
    QATLINE_LAUNCHER_PID     a launcher on this machine: it records the step when the step has ended
    MLFLOW_EXPERIMENT_ID     the experiment of that, or of a plain run; MLFLOW_EXPERIMENT_NAME
                             names one that is made where it is missing

This module imports no MLflow, so that a step that is reused, or one that is not tracked, stays
quick.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from qat_lib.errors import ConfigError, TrackingError
from qatline.components.tracking.mlflow_run import Entry

MODE_VARIABLE = "QATLINE_TRACKING"
PARENT_VARIABLE = "QATLINE_PARENT_RUN_ID"
URI_VARIABLE = "MLFLOW_TRACKING_URI"
RUN_ID_VARIABLE = "MLFLOW_RUN_ID"
PIPELINE_RUN_VARIABLE = "QATLINE_PIPELINE_RUN_ID"
_MODES = ("off", "optional", "required")


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """Start and end of a step that has ended, in milliseconds since 1970."""

    started: int
    ended: int


class Recorder(Protocol):
    """A run that takes entries."""

    def record(self, entry: Entry) -> None:
        """Write an entry; raise TrackingError when the store fails."""


class StepTracker:
    """Record of a step: in its own run and in that of the whole pipeline.

    Args:
        own: the step's run; None where nothing is tracked.
        pipeline: the pipeline's run; None outside a pipeline.
        warn: receives the first failure, after which nothing more is recorded; without it a failure
            is raised.
    """

    def __init__(
        self,
        own: Recorder | None = None,
        pipeline: Recorder | None = None,
        *,
        warn: Callable[[str], None] | None = None,
    ) -> None:
        self._own = own
        self._pipeline = pipeline
        self._warn = warn
        self._failed = False

    def record(self, entry: Entry) -> None:
        """Write an entry to the step's run."""
        self._write(self._own, entry)

    def record_pipeline(self, entry: Entry) -> None:
        """Write an entry to the pipeline's run."""
        self._write(self._pipeline, entry)

    def _write(self, run: Recorder | None, entry: Entry) -> None:
        if run is None or self._failed:
            return
        try:
            run.record(entry)
        except TrackingError as error:
            if self._warn is None:
                raise
            self._warn(f"tracking stops for this step: {error}")
            self._failed = True


def tracking_mode(environment: Mapping[str, str] | None = None) -> str:
    """Return off, optional or required, as the environment says.

    Raises:
        ConfigError: ``QATLINE_TRACKING`` is something else.
    """
    values = os.environ if environment is None else environment
    mode = values.get(MODE_VARIABLE) or ("required" if values.get(URI_VARIABLE) else "off")
    if mode not in _MODES:
        raise ConfigError(
            f"{MODE_VARIABLE}: expected one of {', '.join(_MODES)}; received {mode!r}"
        )
    return mode
