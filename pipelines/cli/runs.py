"""``qatline runs``: what is known about the runs in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qatline.pipelines.cli.command import command
from qatline.pipelines.cli.options import CommandLine, JsonOption, RunsDirOption, print_json

app = CommandLine(no_args_is_help=True, help="List runs, show one, or read its log.")

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
        typer.Option(help="Step whose log to print, such as train_baseline.", show_default=False),
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
