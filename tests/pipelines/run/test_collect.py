import json
import os
from pathlib import Path

from qatline.components.tracking.tracker import StepTimes
from qatline.pipelines.run.collect import (
    finished_steps,
    link_artifacts,
    step_times,
    stopped_steps,
)
from qatline.pipelines.run.event_tail import EventTail
from qatline.pipelines.run.folder import RunFolder
from qatline.pipelines.run.result import FinishedStep


def write_attempt(folder: RunFolder, number: int, seconds: float) -> Path:
    outputs = folder.attempt_dir(number)
    dataset = outputs / "qatline-2026" / "prepare-data-component" / "dataset"
    dataset.mkdir(parents=True)
    (dataset / "data.txt").write_text(f"attempt {number}")
    os.utime(dataset.parents[1], (seconds, seconds))
    return outputs


def test_link_artifacts_ignores_the_clock(tmp_path: Path) -> None:
    folder = RunFolder(path=tmp_path)
    first = write_attempt(folder, 1, seconds=2_000_000_000)
    second = write_attempt(folder, 2, seconds=1_000_000_000)
    for outputs, text in ((first, "attempt 1"), (second, "attempt 2")):
        links = link_artifacts(folder, outputs)
        assert (links["dataset"] / "data.txt").read_text() == text
    assert [path.name for path in folder.artifacts_dir.iterdir()] == ["dataset"]


def test_finished_steps_ignore_the_clock(tmp_path: Path) -> None:
    folder = RunFolder(path=tmp_path)
    events = [
        {
            "event": "step_finished",
            "step": "prepare_data",
            "status": "executed",
            "seconds": 3.0,
            "time": 2000.0,
        },
        {
            "event": "step_finished",
            "step": "prepare_data",
            "status": "reused",
            "seconds": 0.1,
            "time": 1000.0,
        },
    ]
    lines = [json.dumps(event) + "\n" for event in events]
    folder.events_file.write_text("".join(lines))
    assert finished_steps(EventTail(path=folder.events_file, offset=len(lines[0])).read()) == [
        FinishedStep(name="prepare_data", status="reused", seconds=0.1)
    ]


def test_step_times_are_those_of_the_execution(tmp_path: Path) -> None:
    folder = RunFolder(path=tmp_path)
    finished = [
        ("prepare_data", "executed", 3.0, 2000.0),
        ("prepare_data", "reused", 0.1, 3000.0),
        ("evaluate", "reused", 0.5, 3001.0),
        ("evaluate", "reused", None, 4000.0),
        ("promote", "executed", 1.0, None),
    ]
    with folder.events_file.open("w") as events:
        for step, status, seconds, time in finished:
            event = {"event": "step_finished", "step": step, "status": status}
            print(json.dumps({**event, "seconds": seconds, "time": time}), file=events)
        print(json.dumps({"event": "step_started", "step": "promote", "time": 1.0}), file=events)
    assert step_times(folder) == {
        "prepare_data": StepTimes(started=1_997_000, ended=2_000_000),
        "evaluate": StepTimes(started=4_000_000, ended=4_000_000),
    }


def test_stopped_steps_have_not_finished() -> None:
    events = [
        {"event": event, "step": step, "time": float(time)}
        for time, (event, step) in enumerate(
            [
                ("step_started", "prepare_data"),
                ("step_finished", "prepare_data"),
                ("step_started", "evaluate"),
                ("step_started", "train_baseline"),
                ("warning", "train_baseline"),
                ("step_started", "evaluate"),
            ]
        )
    ]
    assert stopped_steps(events) == [events[5], events[3]]
