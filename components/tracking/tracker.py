"""Tracking interface of a step, and the environment that configures it.

The environment is the contract, shared with the MLflow plugin of the KFP backend:

    QATLINE_TRACKING         off | optional | required. Default: required when
                             MLFLOW_TRACKING_URI is set, else off
    MLFLOW_TRACKING_URI      the tracking store
    MLFLOW_RUN_ID            the run created by the backend's plugin for this task: it is resumed,
                             and its parent is the run of the whole pipeline
    QATLINE_PARENT_RUN_ID    else the run of the whole pipeline: a child of it is created
    QATLINE_PIPELINE_RUN_ID  else the id of the pipeline run, on a cluster the one of KFP: its run is
                             found, or created by the first step; see
                             qatline.components.tracking.pipeline_run
    QATLINE_LAUNCHER_PID     a launcher on this machine: it records the step after its end
    MLFLOW_EXPERIMENT_ID     the experiment of that, or of a plain run; MLFLOW_EXPERIMENT_NAME
                             names one that is created if it is missing

This module does not import MLflow: reused and untracked steps start quickly.
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
    """Start and end of a finished step, in milliseconds since 1970."""

    started: int
    ended: int


class Recorder(Protocol):
    """A run that records entries."""

    def record(self, entry: Entry) -> None:
        """Write an entry; raise TrackingError if the store fails."""


class StepTracker:
    """Record of a step, in its own run and in that of the whole pipeline.

    Args:
        own: the step's run; None without tracking.
        pipeline: the pipeline's run; None outside a pipeline.
        warn: receives the first failure, after which recording stops; without it failures are
            raised.
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
    """Return ``off``, ``optional`` or ``required``, as configured by the environment.

    Raises:
        ConfigError: ``QATLINE_TRACKING`` has another value.
    """
    values = os.environ if environment is None else environment
    mode = values.get(MODE_VARIABLE) or ("required" if values.get(URI_VARIABLE) else "off")
    if mode not in _MODES:
        raise ConfigError(
            f"{MODE_VARIABLE}: expected one of {', '.join(_MODES)}; received {mode!r}"
        )
    return mode
