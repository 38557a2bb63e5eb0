from __future__ import annotations

from pathlib import Path

from qatline.pipelines.run.log_lines import StepLines, read_lines

LOG = """10:00 - INFO - Running pipeline: \x1b[95m'qatline'\x1b[0m
----------------------------------------
10:01 - INFO - Executing task \x1b[96m'prepare-data-component'\x1b[0m
    inside Executing task 'other'
    --------------------------------
10:02 - INFO - Task \x1b[96m'prepare-data-component'\x1b[0m finished
----------------------------------------
10:03 - INFO - Executing task \x1b[96m'train-baseline-component'\x1b[0m
    epoch 1"""


def test_step_lines_know_the_step_of_each_line() -> None:
    lines = StepLines()
    steps = [lines.step_of(line) for line in LOG.splitlines()]
    first, second = "prepare_data", "train_baseline"
    assert steps == ["", "", first, first, first, first, "", second, second]


def test_read_lines_of_all_and_of_one_step(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(LOG)
    assert list(read_lines(path)) == LOG.split("\n")
    assert list(read_lines(path, step="train_baseline")) == LOG.split("\n")[-2:]
    assert list(read_lines(path, step="nope")) == []


def test_read_lines_follows_until_the_end(tmp_path: Path) -> None:
    path = tmp_path / "log"
    parts = iter(["a\nhal", "f\n", "last"])

    def grow(_seconds: float) -> None:
        with path.open("a") as log:
            log.write(next(parts))

    more = iter([True, True, True, False])
    assert list(read_lines(path, goes_on=lambda: next(more), sleep=grow)) == ["a", "half", "last"]


def test_read_lines_of_a_missing_log(tmp_path: Path) -> None:
    assert list(read_lines(tmp_path / "log")) == []
