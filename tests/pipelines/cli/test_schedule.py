"""The command that prints schedules."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from qatline.pipelines.cli.main import app

runner = CliRunner(env={"COLUMNS": "80", "TERM": "dumb"})


def test_schedule_prints_one_command_in_both_forms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("nightly.yaml").write_text("registry: {name: line-3}\n")
    done = runner.invoke(app, ["schedule", "--local", "-c", "nightly.yaml", "--cron", "30 3 * * 1"])
    assert done.exit_code == 0, done.stderr
    line = next(line for line in done.stdout.splitlines() if line.startswith("30 3 * * 1 "))
    words = shlex.split(line)
    assert words[words.index("--config") + 1] == str(tmp_path / "nightly.yaml")
    assert "retrain.only_new=true" in words
    assert words[words.index("--runs-dir") + 1] == str(tmp_path / "runs")
    service = re.search(r"ExecStart=(.*)", done.stdout)
    assert service is not None
    assert shlex.split(service[1]) == words[words.index("run") - 1 : words.index(">>")]
    assert "OnCalendar=Mon *-*-* 03:30:00" in done.stdout


def test_schedule_needs_a_registry_and_a_place(tmp_path: Path) -> None:
    unnamed = runner.invoke(app, ["schedule", "--local"])
    assert unnamed.exit_code == 2
    assert "registry.name" in unnamed.stderr
    elsewhere = runner.invoke(app, ["schedule", "-s", "registry.name=x"])
    assert elsewhere.exit_code == 2
    assert "qatline cluster schedule" in elsewhere.stderr
