"""The options of all commands: one meaning each, help in 80 columns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from qatline.pipelines.cli.main import app

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
        if option.param_type_name == "option":
            assert all(name in done.stdout for name in (*option.opts, *option.secondary_opts))


def test_help_lists_values_of_options_unbroken() -> None:
    shown = runner.invoke(app, ["build-engine", "--help"]).stdout
    assert "auto|tensorrt|openvino|onnxruntime" in shown


def test_an_option_has_one_form_everywhere() -> None:
    forms: dict[str, set[tuple[bool, bool]]] = defaultdict(set)
    for command in COMMANDS.values():
        for option in command.params:
            if option.param_type_name == "option":
                forms[option.opts[0]].add((option.is_flag, option.multiple))
    several = {name for name, found in forms.items() if len(found) > 1}
    # Several batch sizes are measured one after the other.
    assert several == {"--batch-size"}


def test_options_output_is_file_plan_is_input() -> None:
    helps = defaultdict(set)
    for command in COMMANDS.values():
        for option in command.params:
            assert not getattr(option, "hidden", False), option.opts
            if option.param_type_name == "option":
                helps[option.opts[0]].add(option.help)
    assert not [text for text in helps["--output"] if "older" in text.lower()]
    assert not [text for text in helps["--plan"] if "rite" in text]
    assert helps["--profile"] == {"Profile of the config."}
    assert helps["--runs-dir"] == {"Folder of the runs (runs)."}
