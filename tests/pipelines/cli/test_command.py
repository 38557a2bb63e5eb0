"""The decorator of commands, and the options that choose a config."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from qat_lib.errors import ConfigError
from qatline.pipelines.cli.command import DEFAULT_CONFIG, ConfigChoice, command
from qatline.pipelines.cli.options import JsonOption

seen: list[Any] = []
app = typer.Typer()


@app.command()
@command
def take(name: str, choice: ConfigChoice = DEFAULT_CONFIG, json_: JsonOption = False) -> None:
    """Take them."""
    if name == "wrong":
        raise ConfigError("It is wrong.")
    seen.append(choice)


def call(*arguments: str) -> Any:
    seen.clear()
    return CliRunner(env={"COLUMNS": "80", "TERM": "dumb"}).invoke(app, arguments)


def test_command_takes_config_options_in_place() -> None:
    text = call("--help").stdout
    names = ("--config", "--profile", "--set", "--json", "--debug")
    assert [text.index(name) for name in names] == sorted(text.index(name) for name in names)
    assert call("a", "-c", "c.yaml", "-p", "x", "-s", "seed=1", "-s", "seed=2").exit_code == 0
    assert seen == [
        ConfigChoice(config=Path("c.yaml"), profile=["x"], set_=["seed=1", "seed=2"]),
    ]


def test_command_reports_errors() -> None:
    done = call("wrong")
    assert (done.exit_code, done.stdout, done.stderr) == (2, "", "Error: It is wrong.\n")
    assert json.loads(call("wrong", "--json").stdout)["error"]["type"] == "ConfigError"
    assert "Traceback" in call("wrong", "--debug").stderr


def test_config_choice_as_arguments(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    choice = ConfigChoice(config=Path("c.yaml"), profile=["x"]).seeded(None).seeded(3)
    assert choice.arguments() == [
        *("--config", str(tmp_path / "c.yaml"), "--profile", "x", "--set", "seed=3")
    ]
    assert DEFAULT_CONFIG.arguments() == []


def test_runs_dir_wins_over_the_config(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    choice = ConfigChoice(set_=["output=elsewhere"])
    assert choice.load().output == str(tmp_path / "elsewhere")
    assert choice.load(Path("mine")).output == str(tmp_path / "mine")
    with pytest.raises(ConfigError, match="--runs-dir: output: expected a folder on this machine"):
        choice.load(Path("s3://bucket/runs"))
