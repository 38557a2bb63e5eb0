"""``qatline registry``, ``promote`` and ``rollback``: champions, seen and moved by hand."""

from __future__ import annotations

from typing import Annotated

import typer

from qatline.pipelines.cli.errors import reported
from qatline.pipelines.cli.options import (
    ConfigOption,
    DebugOption,
    JsonOption,
    ProfileOption,
    RunsDirOption,
    SetOption,
    print_json,
)
from qatline.pipelines.cli.schedule import schedule_here

NameOption = Annotated[
    str | None,
    typer.Option("--name", help="Registered model (registry.name).", show_default=False),
]


def add_registry_commands(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("registry", rich_help_panel="Registry")(show_registry)
    app.command("promote", rich_help_panel="Registry")(promote_run)
    app.command("rollback", rich_help_panel="Registry")(roll_back)
    app.command("schedule", rich_help_panel="Registry")(schedule_here)


def show_registry(
    name: NameOption = None,
    config: ConfigOption = None,
    profile: ProfileOption = None,
    set_: SetOption = None,
    runs_dir: RunsDirOption = None,
    json_: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Show the versions of a registered model, and who moved its champion when."""
    with reported(debug=debug, as_json=json_):
        from qatline.pipelines.cli.registry_view import registry_content, show_versions
        from qatline.pipelines.cli.run import ConfigChoice
        from qatline.pipelines.run.registered import named_registry

        loaded = ConfigChoice(config, profile or [], set_ or [], None, runs_dir).load()
        content = registry_content(named_registry(loaded, name))
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
    config: ConfigOption = None,
    profile: ProfileOption = None,
    set_: SetOption = None,
    runs_dir: RunsDirOption = None,
    debug: DebugOption = False,
) -> None:
    """Make a run's version the champion.

    A version that is not better than chance is refused always.
    """
    with reported(debug=debug):
        from qatline.components.registry.by_hand import promote_version
        from qatline.components.registry.facts import this_user
        from qatline.pipelines.cli.run import ConfigChoice
        from qatline.pipelines.run.registered import named_registry, version_of_run

        loaded = ConfigChoice(config, profile or [], set_ or [], None, runs_dir).load()
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
            help="Why, for the history (shortened to about 4,000 characters).", show_default=False
        ),
    ] = "",
    config: ConfigOption = None,
    profile: ProfileOption = None,
    set_: SetOption = None,
    runs_dir: RunsDirOption = None,
    debug: DebugOption = False,
) -> None:
    """Make the champion's predecessor the champion again.

    No run promotes the version that is left again; qatline promote does.
    """
    with reported(debug=debug):
        from qatline.components.registry.by_hand import rollback
        from qatline.components.registry.facts import this_user
        from qatline.pipelines.cli.run import ConfigChoice
        from qatline.pipelines.run.registered import named_registry

        loaded = ConfigChoice(config, profile or [], set_ or [], None, runs_dir).load()
        registry = named_registry(loaded, name)
        lease = loaded.registry.lease_seconds
        move = rollback(registry, by=this_user(), lease=lease, reason=reason)
        typer.echo(
            f"{registry.name}: version {move.to} is the champion again, instead of version "
            f"{move.left}."
        )
