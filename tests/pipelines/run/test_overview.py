from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from qat_lib.errors import StorageError
from qatline.pipelines.config.run_config import RunConfig, load_config
from qatline.pipelines.run.folder import RunFolder, create_run
from qatline.pipelines.run.overview import (
    RunDetails,
    RunSummary,
    changed_values,
    list_runs,
    read_result,
)
from qatline.pipelines.run.record import write_json


def make(output: Path, *overrides: str) -> RunFolder:
    config = load_config(overrides=[f"output={output}", *overrides])
    return create_run(config, pipeline="a:b", cache=True, version="1")


def finish(folder: RunFolder) -> None:
    folder.finish("finished")
    created, ended = "2026-01-01T10:00:00.000+00:00", "2026-01-01T10:01:30.000+00:00"
    folder.write_record(replace(folder.record(), created=created, ended=ended, attempts=2))
    result = {
        "run_id": folder.run_id,
        "run_dir": str(folder.path),
        "results": {"fp32": {"accuracy": 0.9}, "qat_engine": {"accuracy": 0.875}},
        "gate": {"verdict": "promote", "reasons": []},
    }
    write_json(folder.result_file, result)


def tell(folder: RunFolder, *events: dict[str, Any]) -> None:
    with folder.events_file.open("a") as stream:
        for event in events:
            stream.write(json.dumps({"time": 1.0, **event}) + "\n")


def test_summary_of_a_finished_run(tmp_path: Path) -> None:
    folder = make(tmp_path)
    finish(folder)
    assert RunSummary.of(folder) == RunSummary(
        run_id=folder.run_id,
        path=str(folder.path),
        status="finished",
        created="2026-01-01T10:00:00.000+00:00",
        seconds=90.0,
        attempts=2,
        metric="accuracy",
        value=0.875,
        value_text="87.50%",
        verdict="promote",
    )


def test_summary_of_an_interrupted_run_has_no_result(tmp_path: Path) -> None:
    summary = RunSummary.of(make(tmp_path))
    assert summary.status == "interrupted"
    assert (summary.value, summary.verdict, summary.problem) == (None, None, None)


def test_summary_of_a_record_without_a_clear_begin(tmp_path: Path) -> None:
    folder = make(tmp_path)
    folder.write_record(replace(folder.record(), created="yesterday", status="failed"))
    assert RunSummary.of(folder).seconds is None


@pytest.mark.parametrize("name", ["run.json", "result.json"])
def test_summary_of_a_damaged_run_says_why(tmp_path: Path, name: str) -> None:
    folder = make(tmp_path)
    (folder.path / name).write_text("{")
    summary = RunSummary.of(folder)
    assert summary.status == "damaged"
    assert name in str(summary.problem)
    with pytest.raises(StorageError, match=name):
        RunDetails.of(folder)


def test_read_result_of_another_version(tmp_path: Path) -> None:
    folder = make(tmp_path)
    write_json(folder.result_file, {"run_id": []})
    with pytest.raises(StorageError, match="is of another version of qatline"):
        read_result(folder)


def test_list_runs_sorts_and_skips_hidden_runs(tmp_path: Path) -> None:
    assert list_runs(tmp_path) == []
    folder = make(tmp_path)
    for name in ("a", "z", ".made"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text("{}")
    assert [run.run_id for run in list_runs(tmp_path)] == [folder.run_id, "a", "z"]


def test_changed_values_leaves_the_place_out() -> None:
    config = load_config(
        overrides=["output=x", "cluster.cpu=4", "tracking.required=false", "qat.epochs=9"]
    )
    assert changed_values(config) == {"qat.epochs": 9}
    assert changed_values(RunConfig()) == {}


def test_details_have_the_steps_of_the_last_attempt(tmp_path: Path) -> None:
    folder = make(tmp_path, "seed=3")
    started = {"event": "pipeline_started", "steps": ["a", "b", "c", "d"]}
    tell(
        folder,
        started,
        {"event": "step_started", "step": "a"},
        {"event": "error", "step": "a", "message": "of before"},
        started,
        {"event": "step_finished", "step": "a", "status": "reused", "seconds": 0.5},
        {"event": "step_started", "step": "b"},
        {"event": "error", "step": "b", "message": "of now", "time": 3.0},
        {"event": "step_started", "step": "c"},
    )
    details = RunDetails.of(folder)
    assert details.config == {"seed": 3}
    assert [(step.name, step.status, step.seconds) for step in details.steps] == [
        ("a", "reused", 0.5),
        ("b", "failed", 2.0),
        ("c", "interrupted", None),
        ("d", "waiting", None),
    ]
    assert details.errors == ["of now"]
    assert set(details.paths) == {"run", "config"}


def test_details_of_a_running_step(tmp_path: Path) -> None:
    folder = make(tmp_path)
    tell(folder, {"event": "step_started", "step": "prepare_data"})
    with folder.hold():
        first = RunDetails.of(folder).steps[0]
    assert (first.name, first.status) == ("prepare_data", "running")


def test_details_as_plain_data(tmp_path: Path) -> None:
    folder = make(tmp_path)
    finish(folder)
    content = json.loads(json.dumps(RunDetails.of(folder).to_dict()))
    assert content["status"] == "finished"
    assert content["results"]["qat_engine"]["quality"] == {"accuracy": 0.875}
    assert content["gate"]["verdict"] == "promote"
    assert content["paths"]["run"] == str(folder.path)
    assert content["steps"][0] == {"name": "prepare_data", "status": "waiting", "seconds": None}
