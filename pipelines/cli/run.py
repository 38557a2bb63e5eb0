"""``qatline run`` and ``qatline resume``."""

from __future__ import annotations

import json
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import typer
from rich.console import Console
from rich.text import Text

from qatline.pipelines.cli.command import ConfigChoice
from qatline.pipelines.config.run_config import RunConfig
from qatline.pipelines.run.folder import create_run, find_run
from qatline.pipelines.run.local import MAIN_PIPELINE, RunOutcome, execute, resume_run
from qatline.pipelines.run.preflight import check_before_training, check_environment
from qatline.pipelines.run.progress_view import ProgressView, make_view
from qatline.pipelines.run.result import RunResult
from qatline.pipelines.run.result_table import show_result

REJECTED_CODE = 3
"""Exit code of a run whose engine the gate rejected."""


def run_command(
    config: RunConfig, *, cache: bool, as_json: bool, quiet: bool, pipeline: str = MAIN_PIPELINE
) -> RunResult:
    """Run the pipeline, show the result, and return it.

    Raises:
        QatlineError: Anything that a user can act on; the caller turns it into a message and an
            exit code.
    """
    if pipeline == MAIN_PIPELINE:
        check_before_training(config)
    else:
        check_environment(config)
    folder = create_run(config, pipeline=pipeline, cache=cache, version=installed_version())
    console, view = _screen(as_json=as_json, quiet=quiet)
    _announce(console, f"Run {folder.run_id} in {folder.path}", quiet)
    return _show(console, execute(folder, view), as_json=as_json)


def resume_command(
    choice: ConfigChoice, runs_dir: Path | None, *, run_id: str | None, as_json: bool, quiet: bool
) -> RunResult:
    """Resume a run, by default the latest unfinished; show the result, and return it.

    Raises:
        ConfigError: There is no such run, or the choice names another config than the run's.
        QatlineError: Anything else that a user can act on.
    """
    config = choice.load(runs_dir)
    check_environment(config)
    folder = find_run(Path(config.output), run_id)
    console, view = _screen(as_json=as_json, quiet=quiet)
    _announce(console, f"Resuming run {folder.run_id} in {folder.path}", quiet)
    outcome = resume_run(folder, config if choice.names_values else None, view)
    return _show(console, outcome, as_json=as_json)


def end_with(result: RunResult, *, accept_rejected: bool) -> None:
    """End the command with the exit code of a finished run.

    0 where the engine was promoted or there was nothing new, ``REJECTED_CODE`` where the gate
    rejected it. A pipeline without a gate ends with 0.
    """
    rejected = result.gate.verdict == "reject"
    if result.registry is not None and result.registry.action == "rejected":
        rejected = True  # it passed the gate, but was rolled back by hand before
    if rejected and not accept_rejected:
        raise typer.Exit(REJECTED_CODE)


def _screen(*, as_json: bool, quiet: bool) -> tuple[Console, ProgressView]:
    """Return where to print; with ``as_json`` stdout belongs to the object alone."""
    stream = sys.stderr if as_json else sys.stdout
    return Console(file=stream, highlight=False), make_view(stream, quiet=quiet)


def _show(console: Console, outcome: RunOutcome, *, as_json: bool) -> RunResult:
    if as_json:
        sys.stdout.write(json.dumps(outcome.result.to_dict()) + "\n")
    else:
        show_result(console, outcome.result, seconds=outcome.seconds)
    return outcome.result


def _announce(console: Console, text: str, quiet: bool) -> None:
    if not quiet:
        console.print(Text(text), soft_wrap=True)


def installed_version() -> str:
    """Return qatline's version, as its package says."""
    try:
        return version("qatline")
    except PackageNotFoundError:
        return "unknown"
