import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from qatline.components.support import events
from qatline.components.support.events import EventProgress, NullProgress, emit


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "events.jsonl"
    monkeypatch.setenv("QATLINE_EVENTS", str(path))
    return path


def test_an_event_is_one_line(log: Path) -> None:
    emit("step_finished", "evaluate", status="executed", seconds=1.5, metrics={"accuracy": 0.9})
    (event,) = read(log)
    assert event.pop("time") > 1e9
    assert event == {
        "event": "step_finished",
        "step": "evaluate",
        "status": "executed",
        "seconds": 1.5,
        "metrics": {"accuracy": 0.9},
    }


def test_emit_starts_new_line_after_partial_one(log: Path) -> None:
    log.write_text('{"event": "progr')
    emit("error", "evaluate", message="the disk is full")
    emit("stopped", "evaluate")
    half, *events_after = log.read_text().splitlines()
    assert half == '{"event": "progr'
    assert [json.loads(line)["event"] for line in events_after] == ["error", "stopped"]


def test_without_a_file_nothing_happens(tmp_path: Path) -> None:
    emit("warning", "evaluate", message="nobody listens")
    assert list(tmp_path.iterdir()) == []


def test_numbers_that_json_does_not_know_become_null(log: Path) -> None:
    emit("progress", "s", metrics={"loss": float("nan"), "rate": [float("inf"), 1.0]})
    assert read(log)[0]["metrics"] == {"loss": None, "rate": [None, 1.0]}


def test_emit_survives_unwritable_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("QATLINE_EVENTS", str(tmp_path))
    emit("progress", "s")
    assert "can't be written" in caplog.text


def test_progress_leaves_out_updates_that_come_too_soon(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([0.0, 0.01, 0.2, 0.21, 0.22])
    monkeypatch.setattr(events.time, "monotonic", lambda: next(clock))
    progress = EventProgress("train_baseline")
    for current in (1, 2, 3, 4):
        progress.update("training", current, 4, loss=1.0 / current)
    progress.update("testing", 1, 9)
    assert [(e["phase"], e["current"]) for e in read(log)] == [
        ("training", 1),
        ("training", 3),
        ("training", 4),
        ("testing", 1),
    ]
    assert read(log)[1]["metrics"] == {"loss": 1 / 3}


def test_warn_writes_event_and_log_line(log: Path, caplog: pytest.LogCaptureFixture) -> None:
    EventProgress("prepare_data").warn("one image is broken")
    assert [(e["event"], e["message"]) for e in read(log)] == [("warning", "one image is broken")]
    NullProgress().warn("another")
    NullProgress().update("phase", 1, 2)
    assert caplog.messages == ["one image is broken", "another"]


def test_concurrent_processes_never_mix_lines(log: Path) -> None:
    code = """
from qatline.components.support.events import emit
for i in range(300):
    emit("progress", "s", current=i, pad="x" * 300)
"""
    writers = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(3)]
    assert [writer.wait(timeout=60) for writer in writers] == [0, 0, 0]
    # An empty line may stand between two: a writer that meets half of another's line ends it, and
    # readers skip it.
    found = [json.loads(line)["current"] for line in log.read_text().splitlines() if line]
    assert sorted(found) == sorted(list(range(300)) * 3)


def test_progress_always_reports_first_of_phase(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([5.0, 5.01, 5.02])
    monkeypatch.setattr(events.time, "monotonic", lambda: next(clock))
    progress = EventProgress("s")
    for phase in ("b", "c", "a"):
        progress.update(phase, 1, 9)
    assert [event["phase"] for event in read(log)] == ["b", "c", "a"]


def test_emit_makes_a_file_that_all_may_read(log: Path) -> None:
    before = os.umask(0)
    try:
        emit("stopped", "s")
    finally:
        os.umask(before)
    assert log.stat().st_mode & 0o777 == 0o644


def test_emit_masks_secrets_at_any_depth(log: Path) -> None:
    emit(
        "error",
        "s",
        message="http://me:planted@host",
        more={"a": ["b?token=planted", 1, True, None]},
    )
    (event,) = read(log)
    assert event["message"] == "http://***@host"
    assert event["more"] == {"a": ["b?token=***", 1, True, None]}
