"""The output of ``qatline runs`` on synthetic folders and a quick run."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from qatline.pipelines.cli.main import app
from qatline.pipelines.cli.run_views import show_runs
from qatline.pipelines.config.run_config import load_config
from qatline.pipelines.run.folder import RunFolder, create_run
from qatline.pipelines.run.overview import RunSummary

runner = CliRunner(env={"COLUMNS": "80", "TERM": "dumb"})


@pytest.fixture
def interrupted(tmp_path: Path) -> RunFolder:
    config = load_config(overrides=[f"output={tmp_path}", "training.epochs=3"])
    folder = create_run(config, pipeline="a:b", cache=True, version="1")
    folder.log_file.write_text("noise\n")
    return folder


def runs(folder: Path, *arguments: str) -> Any:
    return runner.invoke(app, ["runs", *arguments, "--runs-dir", str(folder)])


def test_list_of_no_runs(tmp_path: Path) -> None:
    done = runs(tmp_path, "list")
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout == f"No runs in {tmp_path}.\n"
    assert json.loads(runs(tmp_path, "list", "--json").stdout) == {"runs": []}


def test_list_shows_a_damaged_run_and_goes_on(interrupted: RunFolder, tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.json").write_text("{")
    done = runs(tmp_path, "list")
    assert done.exit_code == 0, done.stderr
    assert f"{interrupted.run_id} interrupted" in done.stdout
    assert "broken: " in done.stdout
    listed = json.loads(runs(tmp_path, "list", "--json").stdout)["runs"]
    assert [run["status"] for run in listed] == ["interrupted", "damaged"]


def test_list_has_whole_verdicts_at_80_columns() -> None:
    text = io.StringIO()
    run = RunSummary(
        run_id="20260101-000000-abcd",
        path="x",
        status="interrupted",
        created="2026-01-01T00:00:00+00:00",
        seconds=3599.0,
        metric="accuracy",
        value=1.0,
        value_text="100.00%",
        verdict="nothing new",
    )
    show_runs([run], Path("runs"), Console(file=text, width=80))
    assert text.getvalue().splitlines()[-1].rstrip().endswith(" 100.00% nothing new")


def test_show_of_the_latest_run(interrupted: RunFolder, tmp_path: Path) -> None:
    done = runs(tmp_path, "show")
    assert done.exit_code == 0, done.stderr
    assert done.stdout.startswith(f"{interrupted.run_id}: interrupted, started ")
    assert "  training.epochs: 3\n" in done.stdout
    assert "prepare_data    waiting" in done.stdout
    assert str(interrupted.log_file) in done.stdout
    content = json.loads(runs(tmp_path, "show", interrupted.run_id, "--json").stdout)
    assert content["config"] == {"training.epochs": 3}
    assert (content["results"], content["gate"]) == ({}, {})


@pytest.mark.parametrize("command", ["show", "logs"])
def test_a_run_that_is_missing_ends_with_2(command: str, tmp_path: Path) -> None:
    done = runs(tmp_path, command)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == f"Error: Expected a run in {tmp_path}; there is none.\n"
    named = runs(tmp_path, command, "nope")
    assert named.exit_code == 2
    assert "received 'nope'" in named.stderr


def test_logs_of_a_run_and_of_a_step(interrupted: RunFolder, tmp_path: Path) -> None:
    assert runs(tmp_path, "logs").stdout == "noise\n"
    assert runs(tmp_path, "logs", "--step", "prepare_data").stdout == ""
    wrong = runs(tmp_path, "logs", "--step", "prepare")
    assert wrong.exit_code == 2
    assert "Expected a step of run" in wrong.stderr
    interrupted.log_file.unlink()
    missing = runs(tmp_path, "logs")
    assert missing.exit_code == 1
    assert "there is none" in missing.stderr


@pytest.mark.matrix
def test_a_run_while_it_works_and_after_it(
    fake_cli: Any, started: Callable[..., Popen[str]]
) -> None:
    first = started("run", "--runs-dir", "mine", "--set", "model.options={evaluate: {sleep: 2}}")
    followed = None
    while followed is None and first.poll() is None:
        if list((fake_cli.folder / "mine").glob("*/logs/pipeline.log")):
            followed = fake_cli(
                "runs", "logs", "--follow", "--step", "evaluate", "--runs-dir", "mine"
            )
    assert followed is not None
    assert first.wait(60) == 0
    assert "Looking for component `evaluate_component`" in followed.stdout
    assert "prepare_data_component" not in followed.stdout
    listed = fake_cli("runs", "list", "--runs-dir", "mine")
    assert listed.returncode == 0, listed.stderr
    assert "finished" in listed.stdout
    shown = fake_cli("runs", "show", "--runs-dir", "mine", "--json")
    steps = json.loads(shown.stdout)["steps"]
    assert [(step["name"], step["status"]) for step in steps] == [
        ("prepare_data", "executed"),
        ("train_baseline", "executed"),
        ("evaluate", "executed"),
    ]


@pytest.mark.matrix
def test_resume_goes_on_where_a_run_stopped(fake_cli: Any) -> None:
    failed = fake_cli("run", "--set", "model.options={train_baseline: {error: DataError}}")
    assert failed.returncode == 1
    other = fake_cli("resume", "--seed", "9")
    assert other.returncode == 2
    assert "was started with" in other.stderr
    resumed = fake_cli("resume", fake_cli.only_run().name, "--json")
    assert resumed.returncode == 0, resumed.stderr
    assert "Warning" not in resumed.stderr
    statuses = [step["status"] for step in json.loads(resumed.stdout)["steps"]]
    assert statuses == ["reused", "executed", "executed"]
    nothing = fake_cli("resume")
    assert nothing.returncode == 2
    assert "there is none to resume" in nothing.stderr
