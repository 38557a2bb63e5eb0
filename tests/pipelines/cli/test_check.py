"""``qatline check`` and ``qatline run --dry-run``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from qatline.pipelines.cli.main import app
from tests.pipelines.run.planted import MISTAKES, write_planted

runner = CliRunner(env={"COLUMNS": "80", "TERM": "dumb"})


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_planted(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_check_shows_mistakes_in_80_columns(here: Path) -> None:
    done = runner.invoke(app, ["check", "-c", "run.yaml"])
    assert done.exit_code == 2
    assert f"{len(MISTAKES)} mistakes. Checked in" in done.stdout
    assert " 24. " in done.stdout
    # Paths are not cut.
    assert all(len(line) <= 80 or str(here) in line for line in done.stdout.splitlines())
    assert "  - because of model.name: forward pass" in done.stdout


def test_dry_run_checks_and_runs_nothing(here: Path) -> None:
    done = runner.invoke(app, ["run", "--dry-run", "-c", "hiding.yaml", "--json"])
    assert done.exit_code == 2
    content = json.loads(done.stdout)
    assert {"key", "message"} == set(content["mistakes"][0])
    assert content["not_checked"]["data"] == "data.path"
    assert not (here / "runs").exists()


def test_check_without_mistakes_ends_with_0(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QATLINE_TRACKING", "off")
    done = runner.invoke(app, ["check", "--set", "training.epochs=1"])
    assert done.exit_code == 0, done.output
    assert "No mistakes. Checked in" in done.stdout
    assert "tracking  off" in done.stdout
