"""The message of a failed run, by what its processes could report."""

from collections import namedtuple
from pathlib import Path

import pytest

from qatline.pipelines.run import local
from qatline.pipelines.run.folder import RunFolder
from qatline.pipelines.run.progress import RunProgress

Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    run = RunFolder(path=tmp_path / "r1")
    run.log_file.parent.mkdir(parents=True)
    run.log_file.write_text("old attempt\nTraceback (most recent call last)\n  old\n")
    return run


def failure(folder: RunFolder, *events: dict[str, object], start: int = 0) -> local.RunFailedError:
    progress = RunProgress.of(["a", "b"])
    for event in events:
        progress.apply(event)
    return local._failure(folder, progress, 1, start)


def test_a_step_that_told_why(folder: RunFolder) -> None:
    event = {
        "event": "error",
        "step": "a",
        "type": "DataError",
        "message": "expected x",
        "exit_code": 1,
    }
    error = failure(folder, event, {"event": "stopped", "step": "a"})
    assert str(error) == f"step a failed: expected x\nLog: {folder.log_file}"
    assert (error.step, error.exit_code) == ("a", 1)


def test_a_config_error_keeps_its_exit_code(folder: RunFolder) -> None:
    error = failure(
        folder,
        {"event": "error", "step": "a", "type": "ConfigError", "message": "m", "exit_code": 2},
    )
    assert error.exit_code == 2


def test_a_defect_is_called_a_bug(folder: RunFolder) -> None:
    error = failure(
        folder,
        {"event": "error", "step": "", "type": "KeyError", "message": "'x'", "expected": False},
    )
    assert str(error).startswith(
        "KeyError: 'x'\nThis is a bug in qatline; please report it with the log."
    )


def test_a_step_that_was_killed(folder: RunFolder) -> None:
    error = failure(
        folder, {"event": "step_started", "step": "b"}, {"event": "stopped", "step": "b"}
    )
    assert "step b ended without a message: it was killed, or the machine ran out of memory" in str(
        error
    )
    assert "qatline resume r1" in str(error)


def test_a_step_that_could_not_start(folder: RunFolder) -> None:
    assert "step b could not start" in str(failure(folder, {"event": "stopped", "step": "b"}))


def test_a_launcher_that_was_killed(folder: RunFolder) -> None:
    assert "the launcher ended with code 1 before it could say why" in str(failure(folder))


def test_a_full_disk_on_which_no_message_fits(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local.shutil, "disk_usage", lambda _: Usage(10, 10, 0))
    assert "the disk is full" in str(failure(folder, {"event": "step_started", "step": "b"}))


def test_log_tail_starts_at_the_traceback(folder: RunFolder) -> None:
    start = folder.log_file.stat().st_size
    with folder.log_file.open("a") as log:
        log.write(
            "noise\n\n    Traceback (most recent call last):\n      here\n    ValueError: x\n"
        )
    tail = failure(folder, start=start).log_tail
    assert tail.splitlines()[0].strip() == "Traceback (most recent call last):"
    assert "ValueError: x" in tail
    assert "old" not in tail
