"""The launcher writes the runs of steps, while it runs them."""

import os
from pathlib import Path
from typing import Any

import pytest
from recording_tracker import RecordingTracker

from qatline.components.tracking.step_run import step_run
from qatline.pipelines.run import tracking_server
from qatline.pipelines.run.tracking_server import served_tracking


def test_steps_of_the_block_are_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, progress: Any
) -> None:
    trackers: list[RecordingTracker] = []

    def open_run(_step: str) -> RecordingTracker:
        trackers.append(RecordingTracker())
        return trackers[-1]

    monkeypatch.setattr(tracking_server, "open_run", open_run)
    monkeypatch.setenv("QATLINE_TRACKING", "required")
    with served_tracking():
        socket = Path(os.environ["QATLINE_TRACKING_SOCKET"])
        for name in ("first", "second"):
            with step_run(name, warn=progress.warn) as tracker:
                tracker.log_metrics({name: 1.0})
    assert [tracker.of("metrics") for tracker in trackers] == [[{"first": 1.0}], [{"second": 1.0}]]
    assert {tracker.closed for tracker in trackers} == {"FINISHED"}
    assert "QATLINE_TRACKING_SOCKET" not in os.environ
    assert not socket.exists()


@pytest.mark.parametrize("mode", ["off", "required"])
def test_nothing_is_served_where_it_cannot_be(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QATLINE_TRACKING", mode)
    if mode == "required":  # no socket can have such a path
        monkeypatch.setattr(tracking_server, "LONGEST_PATH", 3)
    with served_tracking():
        assert "QATLINE_TRACKING_SOCKET" not in os.environ
