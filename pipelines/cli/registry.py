"""``qatline registry``, ``promote`` and ``rollback``: champions, seen and moved by hand."""

from __future__ import annotations

from typing import Annotated

import typer

from qatline.pipelines.cli.command import DEFAULT_CONFIG, ConfigChoice, command
from qatline.pipelines.cli.options import JsonOption, RunsDirOption, print_json
from qatline.pipelines.cli.schedule import schedule_here

NameOption = Annotated[
    str | None,
    typer.Option("--name", help="Registered model (registry.name).", show_default=False),
]


def add_registry_commands(app: typer.Typer) -> None:
    """Add the commands."""
    for name, function in (
        ("registry", show_registry),
        ("promote", promote_run),
        ("rollback", roll_back),
        ("schedule", schedule_here),
    ):
        app.command(name, rich_help_panel="Registry")(command(function))


def show_registry(
    name: NameOption = None,
    choice: ConfigChoice = DEFAULT_CONFIG,
    runs_dir: RunsDirOption = None,
    json_: JsonOption = False,
) -> None:
    """Show the versions of a registered model and the history of its champion."""
    from qatline.pipelines.cli.run_views import registry_content, show_versions
    from qatline.pipelines.run.registered import named_registry

    content = registry_content(named_registry(choice.load(runs_dir), name))
    if json_:
        print_json(content)
    else:
        show_versions(content)


def promote_run(
    run: Annotated[
        str,
        typer.Argument(metavar="RUN", help="Run id or folder, MLflow run, or number of a version."),
    ],
    name: NameOption = None,
    accept_rejected: Annotated[
        bool,
        typer.Option("--accept-rejected", help="Promote a version that the gate rejected."),
    ] = False,
    choice: ConfigChoice = DEFAULT_CONFIG,
    runs_dir: RunsDirOption = None,
) -> None:
    """Make a run's version the champion.

    A version that is not better than chance is refused always.
    """
    from qatline.components.registry.by_hand import promote_version
    from qatline.components.registry.facts import this_user
    from qatline.pipelines.run.registered import named_registry, version_of_run

    loaded = choice.load(runs_dir)
    registry = named_registry(loaded, name)
    found = version_of_run(registry, run)
    move = promote_version(
        registry,
        found.number,
        by=this_user(),
        lease=loaded.registry.lease_seconds,
        accept_rejected=accept_rejected,
    )
    if move is None:
        typer.echo(f"{registry.name}: version {found.number} is the champion already.")
    else:
        before = f" instead of version {move.left}" if move.left else ""
        typer.echo(f"{registry.name}: version {move.to} is the champion{before}.")


def roll_back(
    name: NameOption = None,
    reason: Annotated[
        str,
        typer.Option(
            help="Reason, recorded in the history (shortened to about 4,000 characters).",
            show_default=False,
        ),
    ] = "",
    choice: ConfigChoice = DEFAULT_CONFIG,
    runs_dir: RunsDirOption = None,
) -> None:
    """Make the champion's predecessor the champion again.

    No run promotes the version that is left again; qatline promote does.
    """
    from qatline.components.registry.by_hand import rollback
    from qatline.components.registry.facts import this_user
    from qatline.pipelines.run.registered import named_registry

    loaded = choice.load(runs_dir)
    registry = named_registry(loaded, name)
    lease = loaded.registry.lease_seconds
    move = rollback(registry, by=this_user(), lease=lease, reason=reason)
    typer.echo(
        f"{registry.name}: version {move.to} is the champion again, instead of version {move.left}."
    )
