"""``qatline run``: from the options to a run folder, and from the result to the screen."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from rich.console import Console
from rich.text import Text

from components.runtime.credentials import S3_ENDPOINT_VARIABLES, check_variables
from components.tracking.tracker import MODE_VARIABLE, URI_VARIABLE, tracking_mode
from pipelines.cli.progress_view import make_view
from pipelines.cli.result_table import show_result
from pipelines.config.run_config import RunConfig, build_config, load_config
from pipelines.run.folder import create_run, find_run
from pipelines.run.local import MAIN_PIPELINE, execute, resume_run
from pipelines.run.preflight import check_before_training
from qat_lib.errors import ConfigError


def run_command(
    *,
    config: Path | None,
    profiles: Sequence[str],
    overrides: Sequence[str],
    output: Path | None,
    resume: bool,
    run_id: str | None,
    cache: bool,
    as_json: bool,
    quiet: bool,
    pipeline: str = MAIN_PIPELINE,
) -> None:
    """Run or resume, and show the result.

    Raises:
        QatlineError: Anything that a user can act on; the caller turns it into a message and an
            exit code.
    """
    if run_id is not None and not resume:
        raise ConfigError(
            f"Expected --resume with a run id, received {run_id!r} alone. Options start with --."
        )
    if resume and not cache:
        raise ConfigError("Expected --resume or --no-cache, received both: a run keeps its store.")
    given = load_config(config, profiles=profiles, overrides=overrides)
    if output is not None:
        given = build_config(
            {**given.to_dict(), "output": str(output.absolute())}, source="--output"
        )
    _check_environment(given)
    # With --json stdout belongs to the object alone.
    stream = sys.stderr if as_json else sys.stdout
    console = Console(file=stream, highlight=False)
    view = make_view(stream, quiet=quiet)
    if resume:
        changed = (
            config is not None
            or bool(profiles)
            or any(not text.startswith("output=") for text in overrides)
        )
        folder = find_run(Path(given.output), run_id)
        _announce(console, f"Resuming run {folder.run_id} in {folder.path}", quiet)
        outcome = resume_run(folder, given if changed else None, view)
    else:
        if pipeline == MAIN_PIPELINE:
            check_before_training(given)
        folder = create_run(given, pipeline=pipeline, cache=cache, version=installed_version())
        _announce(console, f"Run {folder.run_id} in {folder.path}", quiet)
        outcome = execute(folder, view)
    if as_json:
        sys.stdout.write(json.dumps(outcome.result.to_dict()) + "\n")
    else:
        show_result(console, outcome.result, seconds=outcome.seconds)


def _check_environment(config: RunConfig) -> None:
    """Refuse before the first step what a step, or the launcher, would refuse."""
    tracking_mode()
    read = os.environ.get(MODE_VARIABLE) != "off" and config.tracking.uri is None
    check_variables(*S3_ENDPOINT_VARIABLES, *((URI_VARIABLE,) if read else ()))


def _announce(console: Console, text: str, quiet: bool) -> None:
    if not quiet:
        console.print(Text(text), soft_wrap=True)


def installed_version() -> str:
    """Return qatline's version, as its package says."""
    try:
        return version("qatline")
    except PackageNotFoundError:
        return "unknown"
