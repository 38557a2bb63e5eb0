"""Modes of tracking, and records that fail."""

import pytest
from recording_run import RecordingRun

from qat_lib.errors import ConfigError, TrackingError
from qatline.components.tracking.mlflow_run import Metrics, Tags
from qatline.components.tracking.tracker import StepTracker, tracking_mode


@pytest.mark.parametrize(
    ("environment", "mode"),
    [
        ({}, "off"),
        ({"MLFLOW_TRACKING_URI": "http://x"}, "required"),
        ({"MLFLOW_TRACKING_URI": "http://x", "QATLINE_TRACKING": "off"}, "off"),
        ({"QATLINE_TRACKING": "optional"}, "optional"),
    ],
)
def test_the_environment_decides(environment: dict[str, str], mode: str) -> None:
    assert tracking_mode(environment) == mode


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(
        ConfigError,
        match="QATLINE_TRACKING: expected one of off, optional, required; received 'on'",
    ):
        tracking_mode({"QATLINE_TRACKING": "on"})


def test_entries_reach_their_run() -> None:
    own, pipeline = RecordingRun(), RecordingRun()
    tracker = StepTracker(own, pipeline)
    tracker.record(Metrics({"a": 1.0}))
    tracker.record_pipeline(Tags({"b": "c"}))
    assert (own.entries, pipeline.entries) == ([Metrics({"a": 1.0})], [Tags({"b": "c"})])
    StepTracker(own).record_pipeline(Tags({}))
    StepTracker().record(Tags({}))
    assert len(own.entries) == 1


def test_failure_is_raised_or_one_warning() -> None:
    own, pipeline, warnings = RecordingRun(), RecordingRun(), list[str]()
    own.fail = True
    with pytest.raises(TrackingError, match="went away"):
        StepTracker(own, pipeline).record(Tags({}))
    tracker = StepTracker(own, pipeline, warn=warnings.append)
    for _ in range(2):
        tracker.record(Tags({}))
        tracker.record_pipeline(Tags({}))
    assert warnings == ["tracking stops for this step: the server went away"]
    assert (len(own.entries), pipeline.entries) == (2, [])
