"""``qatline sync`` and ``qatline compare``: runs as MLflow knows them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qatline.pipelines.cli.command import command
from qatline.pipelines.cli.options import (
    PLACE_PANEL,
    JsonOption,
    RunArgument,
    RunsDirOption,
    print_json,
)

TrackingUriOption = Annotated[
    str | None,
    typer.Option(
        "--tracking-uri",
        metavar="URI",
        help="MLflow store (the run's own).",
        rich_help_panel=PLACE_PANEL,
        show_default=False,
    ),
]


def add_record_commands(app: typer.Typer) -> None:
    """Add the commands to ``qatline``."""
    app.command("compare", rich_help_panel="Runs")(command(compare_records))
    app.command("sync", rich_help_panel="Runs")(command(sync_record))


def compare_records(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN",
            help="Run IDs or folders, MLflow run IDs, or KFP run IDs (default: last five).",
            show_default=False,
        ),
    ] = None,
    experiment: Annotated[
        str | None,
        typer.Option("--experiment", help="MLflow experiment (qatline).", show_default=False),
    ] = None,
    tracking_uri: TrackingUriOption = None,
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="Page to write.", show_default=False),
    ] = None,
    runs_dir: RunsDirOption = None,
    json_: JsonOption = False,
) -> None:
    """Compare runs: differing config values and metrics, from MLflow.

    They may have run here or on a cluster.
    """
    from qatline.pipelines.cli.run_views import show_comparison
    from qatline.pipelines.comparison.find_runs import RunChoice

    choice = RunChoice(
        names=runs or [],
        output=runs_dir or Path("runs"),
        experiment=experiment,
        uri=tracking_uri,
    )
    show_comparison(choice, html=html, as_json=json_)


def sync_record(
    run: RunArgument,
    tracking_uri: TrackingUriOption = None,
    runs_dir: RunsDirOption = None,
    json_: JsonOption = False,
) -> None:
    """Record a run in MLflow from its folder, after the store was away.

    Existing records do not change.
    """
    from qatline.pipelines.run.folder import find_run
    from qatline.pipelines.run.sync import sync_run

    done = sync_run(find_run(runs_dir or Path("runs"), run), uri=tracking_uri)
    if json_:
        print_json(done.to_dict())
        return
    new, old = ", ".join(done.recorded) or "none", ", ".join(done.present) or "none"
    typer.echo(f"Run {done.run_id} is recorded in {done.tracking.uri}")
    typer.echo(f"Steps recorded now: {new}")
    typer.echo(f"Steps recorded before: {old}")
