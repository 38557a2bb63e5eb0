"""Tracking of a step's run, seen from the step.

A small protocol, and which implementation the environment asks for.

The environment is the contract, the same that the MLflow plugin of the KFP backend follows:

    QATLINE_TRACKING         off | optional | required. Default: required when
                             MLFLOW_TRACKING_URI is set, else off
    MLFLOW_TRACKING_URI      the tracking store
    MLFLOW_RUN_ID            the run that the backend's plugin made for this task: it is resumed, and
                             its parent is the run of the whole pipeline
    QATLINE_PARENT_RUN_ID    else the run of the whole pipeline: a child of it is made
    QATLINE_PIPELINE_RUN_ID  else the id of the pipeline run, on a cluster the one of KFP: its run is
                             found, or made by the first step; see qatline.components.tracking.pipeline_run
    QATLINE_TRACKING_SOCKET  a launcher that writes all of it for the step; see
                             qatline.components.tracking.remote_tracker
    MLFLOW_EXPERIMENT_ID     the experiment of that, or of a plain run; MLFLOW_EXPERIMENT_NAME
                             names one that is made where it is missing

This module imports no MLflow, so that a step that is reused, or one that is not tracked, stays
quick.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from qat_lib.errors import ConfigError, TrackingError
from qatline.components.artifacts.data_info import DatasetInfo
from qatline.components.tracking.store import ensure_store, probe

__all__ = [
    "NullTracker",
    "OptionalTracker",
    "RunRecorder",
    "StepTimes",
    "StepTracker",
    "ensure_store",
    "probe",
    "tracking_mode",
]

MODE_VARIABLE = "QATLINE_TRACKING"
PARENT_VARIABLE = "QATLINE_PARENT_RUN_ID"
URI_VARIABLE = "MLFLOW_TRACKING_URI"
PIPELINE_RUN_VARIABLE = "QATLINE_PIPELINE_RUN_ID"
_MODES = ("off", "optional", "required")


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """When a step ran that is recorded later: milliseconds since 1970."""

    started: int
    ended: int


class RunRecorder(Protocol):
    """What can be recorded about any run, a step's or the whole pipeline's.

    Every method raises TrackingError when the store fails.
    """

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Record settings, already flattened and with their own prefix."""

    def log_metrics(self, metrics: Mapping[str, float]) -> None:
        """Record final numbers."""

    def log_history(self, history: Sequence[Mapping[str, float]], prefix: str = "epoch") -> None:
        """Record curves: one mapping an epoch, with its number under ``epoch``."""

    def log_artifact(self, path: Path, folder: str = "") -> None:
        """Record one file, below ``folder`` of the run's artifacts."""

    def log_dataset(self, info: DatasetInfo) -> None:
        """Record the data set that the step read or made."""

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Record tags."""


class StepTracker(RunRecorder, Protocol):
    """What a step can record about its run, and about the pipeline's."""

    @property
    def pipeline(self) -> RunRecorder:
        """The run of the whole pipeline; without one, what is recorded goes nowhere."""

    def log_onnx(self, path: Path, name: str) -> None:
        """Record an ONNX model with the signature of its graph."""


class ClosableRun(StepTracker, Protocol):
    """A tracker whose run is open until it is closed."""

    def close(self, status: str) -> None:
        """End the run as FINISHED or FAILED."""


class NullTracker:
    """Tracking that is off."""

    @property
    def pipeline(self) -> RunRecorder:
        """Nothing, either."""
        return self

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Do nothing."""

    def log_metrics(self, metrics: Mapping[str, float]) -> None:
        """Do nothing."""

    def log_history(self, history: Sequence[Mapping[str, float]], prefix: str = "epoch") -> None:
        """Do nothing."""

    def log_artifact(self, path: Path, folder: str = "") -> None:
        """Do nothing."""

    def log_onnx(self, path: Path, name: str) -> None:
        """Do nothing."""

    def log_dataset(self, info: DatasetInfo) -> None:
        """Do nothing."""

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Do nothing."""


class _OptionalRecorder:
    """Recording that must not end the run.

    ``attempt`` runs what is given to it, or nothing once something has failed.
    """

    def __init__(self, inner: RunRecorder, attempt: Callable[[Callable[[], None]], None]) -> None:
        self._recorder = inner
        self._attempt = attempt

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Record settings while tracking works."""
        self._attempt(lambda: self._recorder.log_params(params))

    def log_metrics(self, metrics: Mapping[str, float]) -> None:
        """Record final numbers while tracking works."""
        self._attempt(lambda: self._recorder.log_metrics(metrics))

    def log_history(self, history: Sequence[Mapping[str, float]], prefix: str = "epoch") -> None:
        """Record curves while tracking works."""
        self._attempt(lambda: self._recorder.log_history(history, prefix))

    def log_artifact(self, path: Path, folder: str = "") -> None:
        """Record one file while tracking works."""
        self._attempt(lambda: self._recorder.log_artifact(path, folder))

    def log_dataset(self, info: DatasetInfo) -> None:
        """Record the data set while tracking works."""
        self._attempt(lambda: self._recorder.log_dataset(info))

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Record tags while tracking works."""
        self._attempt(lambda: self._recorder.set_tags(tags))


class OptionalTracker(_OptionalRecorder):
    """Tracking that must not end the run.

    The first failure is one warning, and what follows is not tracked.
    """

    def __init__(self, inner: StepTracker, warn: Callable[[str], None]) -> None:
        super().__init__(inner, self._try)
        self._inner = inner
        self._warn = warn
        self._failed = False

    @property
    def pipeline(self) -> RunRecorder:
        """The run of the pipeline, recorded while tracking works."""
        return _OptionalRecorder(self._inner.pipeline, self._try)

    def log_onnx(self, path: Path, name: str) -> None:
        """Record an ONNX model while tracking works."""
        self._try(lambda: self._inner.log_onnx(path, name))

    def _try(self, action: Callable[[], None]) -> None:
        if self._failed:
            return
        try:
            action()
        except TrackingError as error:
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
