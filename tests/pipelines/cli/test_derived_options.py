from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from qat_lib.export.options import ExportOptions
from qatline.components.support.training_options import FinetuningOptions
from qatline.pipelines.cli.derived_options import with_export_options, with_finetuning_options

seen: list[Any] = []
app = typer.Typer()


@app.command()
@with_export_options
def command(
    name: str,
    options: Callable[..., ExportOptions],
    loud: Annotated[bool, typer.Option("--loud", help="Shout.")] = False,
) -> None:
    """Take them."""
    seen.append((name, loud, options, options(weights="qdq")))


def call(*arguments: str) -> Any:
    seen.clear()
    return CliRunner(env={"COLUMNS": "80", "TERM": "dumb"}).invoke(app, arguments)


def test_export_options_by_default() -> None:
    assert call("a").exit_code == 0
    ((name, loud, options, other),) = seen
    assert (name, loud, options()) == ("a", False, ExportOptions())
    assert other == ExportOptions(weights="qdq")


def test_export_options_from_the_command_line() -> None:
    done = call("a", "--opset", "18", "--channels-first", "--loud")
    assert done.exit_code == 0, done.output
    ((_, loud, options, _),) = seen
    assert loud
    assert options() == ExportOptions(opset=18, channels_first_input=True)


@pytest.mark.parametrize(
    "arguments", [("--opset", "12"), ("--weights", "x"), ("--embed-preprocessing",)]
)
def test_export_options_out_of_range_are_refused(arguments: tuple[str, ...]) -> None:
    assert call("a", *arguments).exit_code == 2
    assert seen == []


def test_export_options_show_help_in_their_order() -> None:
    text = call("--help").stdout
    places = [text.index(name) for name in ("--opset", "--weights", "--loud")]
    assert places == sorted(places)
    assert "[13<=x<=21]" in text


tuned: list[dict[str, Any]] = []
tuning = typer.Typer()


@tuning.command()
@with_finetuning_options
def tune(options: Any = None) -> None:
    """Take them."""
    tuned.append(options())


def tune_with(*arguments: str) -> Any:
    tuned.clear()
    return CliRunner(env={"COLUMNS": "80", "TERM": "dumb"}).invoke(tuning, arguments)


def test_finetuning_options_have_the_defaults_of_the_config() -> None:
    assert tune_with().exit_code == 0
    (found,) = tuned
    expected = asdict(FinetuningOptions())
    assert found == {name: expected[name] for name in found}
    pipeline_alone = {"control", "teacher", "checkpoint_epochs", "workers"}
    assert expected.keys() - found.keys() == pipeline_alone


def test_finetuning_options_from_the_command_line() -> None:
    given = ["--ema", "0.9", "--freeze-batch-norm", "2", "--reestimate-bn"]
    assert tune_with(*given, "--range-rate", "0.5").exit_code == 0
    (found,) = tuned
    assert (found["ema"], found["freeze_batch_norm"], found["range_rate"]) == (0.9, 2, 0.5)
    assert found["reestimate_batch_norm"]


@pytest.mark.parametrize(
    "arguments",
    [["--epochs", "0"], ["--distillation", "1.5"], ["--freeze-ranges", "0"], ["--teacher", "x"]],
    ids=" ".join,
)
def test_finetuning_options_out_of_bounds_are_refused(arguments: list[str]) -> None:
    assert tune_with(*arguments).exit_code == 2
