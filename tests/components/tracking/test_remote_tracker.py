"""A step's record through the launcher, over a real socket."""

import threading
from collections.abc import Iterator
from multiprocessing.connection import Client, Connection, Listener, Pipe
from pathlib import Path
from typing import Any

import pytest
from recording_tracker import RecordingTracker

from qat_lib.errors import DataError, TrackingError
from qatline.components.artifacts.data_info import DatasetInfo
from qatline.components.tracking.remote_tracker import RemoteRun, open_remote_run, serve_run
from qatline.components.tracking.step_run import step_run

INFO = DatasetInfo(
    kind="npz",
    classes=("a", "b"),
    image_shape=(8, 8, 1),
    dtype="float32",
    splits={"test": 2},
    fingerprint="f" * 64,
    source="d.npz",
)


@pytest.fixture
def launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RecordingTracker]:
    """A launcher that remembers what one step after the other records."""
    monkeypatch.chdir(tmp_path)  # the path of a socket must be short
    path, tracker = "s", RecordingTracker()

    def open_run(step: str) -> RecordingTracker:
        if step == "refused":
            raise TrackingError("the store refuses")
        tracker.calls.append(("open", step))
        return tracker

    def serve() -> None:
        while True:
            connection = listener.accept()
            if ended:
                return
            serve_run(connection, open_run)

    ended: list[bool] = []
    with Listener(path, family="AF_UNIX") as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        monkeypatch.setenv("QATLINE_TRACKING_SOCKET", path)
        monkeypatch.setenv("QATLINE_TRACKING", "required")
        yield tracker
        ended.append(True)
        Client(path, family="AF_UNIX").close()
        thread.join(timeout=30)


def test_everything_reaches_the_launcher(
    launcher: RecordingTracker, progress: Any, tmp_path: Path
) -> None:
    with step_run("evaluate", warn=progress.warn) as tracker:
        tracker.log_params({"qat.epochs": 3, "path": None})
        tracker.log_metrics({"accuracy": 0.5})
        tracker.log_history([{"epoch": 1, "loss": float("nan")}], "x")
        tracker.log_artifact(Path("relative.json"), "deep")
        tracker.log_dataset(INFO)
        tracker.set_tags({"path": "y"})
        tracker.log_onnx(tmp_path / "qat.onnx", "qat")
        tracker.pipeline.log_metrics({"qat_engine/accuracy": 0.5})
    assert launcher.closed == "FINISHED"
    calls = dict(launcher.calls)
    history, prefix = calls.pop("history")
    assert str(history) == "[{'epoch': 1, 'loss': nan}]"  # which is not equal to itself
    assert prefix == "x"
    assert calls == {
        "open": "evaluate",
        "params": {"qat.epochs": "3", "path": "None"},
        "metrics": {"accuracy": 0.5},
        "artifact": ("relative.json", "deep"),
        "dataset": INFO,
        "tags": {"path": "y"},
        "onnx": ("qat.onnx", "qat"),
    }
    assert launcher.pipeline.calls == [("metrics", {"qat_engine/accuracy": 0.5})]


def test_step_that_fails_has_a_failed_run(launcher: RecordingTracker, progress: Any) -> None:
    with pytest.raises(DataError), step_run("evaluate", warn=progress.warn):
        raise DataError("x")
    assert launcher.closed == "FAILED"


def test_refusal_of_the_store_is_the_steps_error(launcher: RecordingTracker, progress: Any) -> None:
    with pytest.raises(TrackingError, match="the store refuses"):
        step_run("refused", warn=progress.warn).__enter__()
    launcher.fail = True
    with (
        pytest.raises(TrackingError, match="the server went away"),
        step_run("evaluate", warn=progress.warn) as tracker,
    ):
        tracker.log_metrics({"a": 1.0})


def test_killed_step_leaves_a_failed_run() -> None:
    tracker, (ours, theirs) = RecordingTracker(), Pipe()
    thread = serving(theirs, tracker)
    ours.send_bytes(b'{"open": "evaluate"}')
    assert ours.recv_bytes() == b"{}"
    ours.close()
    thread.join(timeout=30)
    assert tracker.closed == "FAILED"
    assert theirs.closed


@pytest.mark.parametrize(
    "message",
    [
        b'{"call": "log_metrics", "pipeline": false, "arguments": [{}]}',
        b'{"call": "close", "pipeline": false, "arguments": ["FINISHED"]}',
        b'{"close": "FINISHED"}',
        b"[]",
        b"{}",
    ],
)
def test_call_without_a_run_is_refused(message: bytes) -> None:
    tracker, (ours, theirs) = RecordingTracker(), Pipe()
    thread = serving(theirs, tracker)
    ours.send_bytes(message)
    assert b'"error"' in ours.recv_bytes()
    ours.close()
    thread.join(timeout=30)
    assert tracker.calls == []


def test_launcher_that_ends_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert open_remote_run("evaluate") is None
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QATLINE_TRACKING_SOCKET", "nobody")
    assert open_remote_run("evaluate") is None
    ours, theirs = Pipe()
    theirs.close()
    with pytest.raises(TrackingError, match=r"the launcher.*has ended"):
        RemoteRun(ours).log_metrics({"a": 1.0})


def serving(connection: "Connection[Any, Any]", tracker: RecordingTracker) -> threading.Thread:
    thread = threading.Thread(target=serve_run, args=(connection, lambda step: tracker))
    thread.start()
    return thread
