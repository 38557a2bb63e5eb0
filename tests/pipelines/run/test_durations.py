from __future__ import annotations

import json
from pathlib import Path

import pytest

from qatline.pipelines.config.run_config import load_config
from qatline.pipelines.run.durations import expected_seconds, measured_seconds
from qatline.pipelines.run.folder import RunFolder, create_run
from qatline.pipelines.steps import STEP_ARTIFACTS


def make(output: Path, *overrides: str) -> RunFolder:
    config = load_config(overrides=[f"output={output}", *overrides])
    return create_run(config, pipeline="a:b", cache=True, version="1")


def finish(folder: RunFolder, *, status: str = "executed") -> None:
    lines = [{"event": "pipeline_started", "step": "", "time": 1.0}]
    for name, begin, end in (("a", 10.0, 14.0), ("b", 16.0, 20.0)):
        lines.append({"event": "step_started", "step": name, "time": begin})
        lines.append({"event": "step_finished", "step": name, "time": end, "status": status})
    folder.events_file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    folder.result_file.write_text("{}")


def test_default_run_has_an_estimate_of_every_step(tmp_path: Path) -> None:
    assert set(expected_seconds(make(tmp_path))) == set(STEP_ARTIFACTS)


def test_other_runs_have_none_at_first(tmp_path: Path) -> None:
    assert expected_seconds(make(tmp_path, "training.epochs=7")) == {}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [("training.epochs=7", {"a": 6.0, "b": 4.0}), ("training.epochs=8", {})],
)
def test_equal_runs_give_the_estimate(
    tmp_path: Path, settings: str, expected: dict[str, float]
) -> None:
    finish(make(tmp_path, "training.epochs=7"))
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "run.json").write_text("{")
    assert expected_seconds(make(tmp_path, settings, "engine.threads=1")) == expected


@pytest.mark.parametrize("time", ['"x"', "null", "[]"])
def test_damaged_events_of_an_earlier_run_give_none(tmp_path: Path, time: str) -> None:
    earlier = make(tmp_path, "training.epochs=7")
    finish(earlier)
    damaged = f'{{"event": "step_started", "step": "c", "time": {time}}}\n'
    with earlier.events_file.open("a") as events:
        events.write(damaged)
    assert expected_seconds(make(tmp_path, "training.epochs=7")) == {}


def test_reused_steps_give_none(tmp_path: Path) -> None:
    folder = make(tmp_path)
    finish(folder, status="reused")
    assert measured_seconds(folder) == {}


def test_run_without_steps_gives_none(tmp_path: Path) -> None:
    folder = make(tmp_path)
    folder.events_file.write_text('{"event": "pipeline_started", "step": "", "time": 1.0}\n')
    assert measured_seconds(folder) == {}
