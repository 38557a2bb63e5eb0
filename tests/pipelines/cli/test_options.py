"""The options of all commands: one meaning each, help in 80 columns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from qat_lib.errors import ConfigError
from qatline.pipelines.cli.main import app
from qatline.pipelines.cli.options import runs_folder

runner = CliRunner(env={"COLUMNS": "80", "TERM": "dumb"})


def leaves(command: Any, prefix: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, each in command.commands.items():
        if hasattr(each, "commands"):
            yield from leaves(each, (*prefix, name))
        else:
            yield (*prefix, name), each


COMMANDS = dict(leaves(typer.main.get_command(app)))


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_fits_80_columns(command: tuple[str, ...]) -> None:
    done = runner.invoke(app, [*command, "--help"])
    assert done.exit_code == 0
    assert max(len(line) for line in done.stdout.splitlines()) <= 80
    assert "[[" not in done.stdout
    for option in COMMANDS[command].params:
        if option.param_type_name == "option" and not option.hidden:
            assert all(name in done.stdout for name in (*option.opts, *option.secondary_opts))


def test_help_lists_values_of_options_unbroken() -> None:
    shown = runner.invoke(app, ["build-engine", "--help"]).stdout
    assert "auto|tensorrt|openvino|onnxruntime" in shown


def test_an_option_has_one_form_everywhere() -> None:
    forms: dict[str, set[tuple[bool, bool]]] = defaultdict(set)
    for command in COMMANDS.values():
        for option in command.params:
            if option.param_type_name == "option" and not option.hidden:
                forms[option.opts[0]].add((option.is_flag, option.multiple))
    several = {name for name, found in forms.items() if len(found) > 1}
    # Several batch sizes are measured one after the other.
    assert several == {"--batch-size"}


def test_options_output_is_file_plan_is_input() -> None:
    helps = defaultdict(set)
    for command in COMMANDS.values():
        for option in command.params:
            if not getattr(option, "hidden", False):
                helps[option.opts[0]].add(option.help)
    assert not [text for text in helps["--output"] if "older" in text]
    assert not [text for text in helps["--plan"] if "rite" in text]
    assert helps["--profile"] == {"Profile of the config."}
    assert helps["--runs-dir"] == {"Folder of the runs (runs)."}


def test_runs_folder_warns_of_old_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert runs_folder(None, None) is None
    assert runs_folder(Path("new"), None) == Path("new")
    assert capsys.readouterr().err == ""
    assert runs_folder(None, Path("old")) == Path("old")
    assert "is now --runs-dir; the old name goes with the next release" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="Expected --runs-dir alone"):
        runs_folder(Path("new"), Path("old"))


@pytest.mark.parametrize(
    ("arguments", "warning"),
    [
        (["compare", "-o", "FOLDER"], "is now --runs-dir"),
        (["ui", "x", "--output", "FOLDER"], "is now --runs-dir"),
        (
            ["quantize", "no.keras", "--plan", "p.json", "-o", "q"],
            "--plan of quantize is now --save-plan",
        ),
        (
            ["build-engine", "no.onnx", "--profile"],
            "--profile of build-engine is now --layer-timing",
        ),
        (["build-engine", "no.onnx", "--max-batch", "2"], "--max-batch is now --max-batch-size"),
    ],
)
def test_an_old_name_works_with_a_warning(
    arguments: list[str], warning: str, tmp_path: Path
) -> None:
    done = runner.invoke(app, [text.replace("FOLDER", str(tmp_path)) for text in arguments])
    first, second = done.stderr.splitlines()[:2]
    assert first.startswith("Warning: ")
    assert warning in first
    assert second.startswith("Error: ")
    assert "No such option" not in done.stderr


def test_quantize_takes_one_name_of_the_plan_alone(tmp_path: Path) -> None:
    both = ["--plan", str(tmp_path / "a"), "--save-plan", str(tmp_path / "b")]
    done = runner.invoke(app, ["quantize", "no.keras", *both])
    assert done.exit_code == 2
    assert "Expected --save-plan alone" in done.stderr
