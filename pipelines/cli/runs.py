"""``qatline runs``: the runs in a folder, their logs and their removal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from qat_lib.errors import ConfigError
from qatline.pipelines.cli.command import command
from qatline.pipelines.cli.options import CommandLine, JsonOption, RunsDirOption, print_json

app = CommandLine(
    no_args_is_help=True, help="List runs, show one, read its log, or remove old ones."
)

RunOrLatest = Annotated[
    str | None,
    typer.Argument(
        metavar="RUN", help="A run's id or folder (the latest one).", show_default=False
    ),
]


@app.command("list")
@command
def list_(runs_dir: RunsDirOption = None, json_: JsonOption = False) -> None:
    """List the runs, oldest first, with the INT8 engine's accuracy."""
    from qatline.pipelines.cli.run_views import show_runs
    from qatline.pipelines.run.overview import list_runs

    folder = runs_dir or Path("runs")
    found = list_runs(folder)
    if json_:
        print_json({"runs": [run.to_dict() for run in found]})
    else:
        show_runs(found, folder)


@app.command("show")
@command
def show_run(
    run: RunOrLatest = None,
    runs_dir: RunsDirOption = None,
    json_: JsonOption = False,
) -> None:
    """Show a run: changed config values, steps, results, and where things are."""
    from qatline.pipelines.cli.run_views import show_details
    from qatline.pipelines.run.folder import find_or_latest
    from qatline.pipelines.run.overview import RunDetails

    details = RunDetails.of(find_or_latest(runs_dir or Path("runs"), run))
    if json_:
        print_json(details.to_dict())
    else:
        show_details(details)


@app.command("logs")
@command
def log_of_run(
    run: RunOrLatest = None,
    step: Annotated[
        str | None,
        typer.Option(help="Only the log of this step, such as train_baseline.", show_default=False),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Follow the log until the run ends.")
    ] = False,
    runs_dir: RunsDirOption = None,
) -> None:
    """Print the log of a run, or of one of its steps."""
    from qatline.pipelines.cli.run_views import print_log
    from qatline.pipelines.run.folder import find_or_latest

    print_log(find_or_latest(runs_dir or Path("runs"), run), step=step, follow=follow)


@app.command("gc")
@command
def remove_runs(
    older_than: Annotated[
        str | None,
        typer.Option(metavar="AGE", help="Only runs started so long ago: 12h, 30d."),
    ] = None,
    status: Annotated[
        list[str] | None,
        typer.Option(help="Only runs with this status, such as failed; repeatable."),
    ] = None,
    max_size: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Only the oldest, until runs and cached results have this size: 20GiB.",
        ),
    ] = None,
    delete: Annotated[
        bool, typer.Option("--delete", help="Remove them, instead of showing them.")
    ] = False,
    runs_dir: RunsDirOption = None,
    json_: JsonOption = False,
) -> None:
    """Remove runs, and cached results without another run.

    Runs in progress are kept, and runs that made a champion or its predecessor. The records in
    MLflow and the registered models remain.
    """
    from pydantic import ByteSize, TypeAdapter

    from qatline.pipelines.cli.run_views import show_removal
    from qatline.pipelines.config.kubernetes_values import parse_seconds
    from qatline.pipelines.run.removal import plan_removal, remove

    folder = (runs_dir or Path("runs")).absolute()
    removal = plan_removal(
        folder,
        seconds=_parsed(older_than, parse_seconds, "--older-than", "an age such as 12h or 30d"),
        statuses=status or (),
        most_bytes=_parsed(
            max_size,
            TypeAdapter(ByteSize).validate_python,
            "--max-size",
            "a size such as 500MB or 20GiB",
        ),
    )
    if delete:
        remove(removal, folder)
    if json_:
        print_json({**removal.to_dict(), "deleted": delete})
    else:
        show_removal(removal, folder, delete=delete)


def _parsed(
    text: str | None, parse: Callable[[str], int], option: str, expected: str
) -> int | None:
    try:
        return None if text is None else parse(text)
    except ValueError as error:
        raise ConfigError(f"{option}: expected {expected}, received {text!r}.") from error
