import json
import os
from pathlib import Path

from pipelines.run.collect import finished_steps, link_artifacts
from pipelines.run.folder import RunFolder
from pipelines.run.result import FinishedStep


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
    assert finished_steps(folder, since=len(lines[0])) == [
        FinishedStep(name="prepare_data", status="reused", seconds=0.1)
    ]
