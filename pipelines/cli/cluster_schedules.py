"""``qatline cluster``: the schedules of a Kubeflow Pipelines server."""

from __future__ import annotations

from typing import Annotated

import typer

from qatline.pipelines.cli.cluster_options import Experiment, Host, Namespace, ScheduleName, Token
from qatline.pipelines.cli.cluster_views import schedule_lines
from qatline.pipelines.cli.errors import reported
from qatline.pipelines.cli.options import ConfigOption, DebugOption, ProfileOption, SetOption


def add_schedule_commands(app: typer.Typer) -> None:
    """Add the commands to ``qatline cluster``."""
    app.command()(schedule)
    app.command()(unschedule)
    app.command("pause")(pause_schedule)
    app.command("resume")(resume_schedule)
    app.command("show")(show_schedule)
    app.command()(schedules)


def schedule(
    name: ScheduleName,
    host: Host,
    cron: Annotated[
        str, typer.Option(help="Six fields, seconds first: '0 0 2 * * *'.", show_default=False)
    ] = "",
    every: Annotated[
        str | None,
        typer.Option(help="Interval instead of --cron: 30m, 6h, 1d.", show_default=False),
    ] = None,
    config: ConfigOption = None,
    profile: ProfileOption = None,
    set_: SetOption = None,
    experiment: Experiment = "qatline",
    max_concurrency: Annotated[int, typer.Option(help="Maximum concurrent runs, 1 to 10.")] = 1,
    namespace: Namespace = "",
    token: Token = None,
    debug: DebugOption = False,
) -> None:
    """Create or update the schedule NAME (idempotent)."""
    with reported(debug=debug):
        from qatline.pipelines.cluster.schedule import Schedule
        from qatline.pipelines.cluster.server import connect
        from qatline.pipelines.config.run_config import load_config

        wanted = Schedule(
            name=name, cron=cron, every=_interval(every), max_concurrency=max_concurrency
        )
        loaded = load_config(config, profiles=profile or [], overrides=set_ or [])
        done = connect(host, namespace=namespace, token=token).apply_schedule(
            loaded, wanted, experiment=experiment
        )
        typer.echo(f"Schedule {name}: {done}")


def unschedule(
    name: ScheduleName,
    host: Host,
    namespace: Namespace = "",
    token: Token = None,
    debug: DebugOption = False,
) -> None:
    """Remove the schedule NAME."""
    with reported(debug=debug):
        from qatline.pipelines.cluster.server import connect

        connect(host, namespace=namespace, token=token).delete_schedule(name)
        typer.echo(f"Schedule {name}: removed")


def pause_schedule(
    name: ScheduleName,
    host: Host,
    namespace: Namespace = "",
    token: Token = None,
    debug: DebugOption = False,
) -> None:
    """Pause the schedule NAME; runs that have started go on."""
    with reported(debug=debug):
        from qatline.pipelines.cluster.server import connect

        connect(host, namespace=namespace, token=token).pause_schedule(name)
        typer.echo(f"Schedule {name}: paused")


def resume_schedule(
    name: ScheduleName,
    host: Host,
    namespace: Namespace = "",
    token: Token = None,
    debug: DebugOption = False,
) -> None:
    """Resume the paused schedule NAME; missed runs are not made up for."""
    with reported(debug=debug):
        from qatline.pipelines.cluster.server import connect

        connect(host, namespace=namespace, token=token).resume_schedule(name)
        typer.echo(f"Schedule {name}: resumed")


def show_schedule(
    name: ScheduleName,
    host: Host,
    namespace: Namespace = "",
    token: Token = None,
    debug: DebugOption = False,
) -> None:
    """Show the schedule NAME and its latest runs."""
    with reported(debug=debug):
        from qatline.pipelines.cluster.server import connect

        details = connect(host, namespace=namespace, token=token).show_schedule(name)
        typer.echo("\n".join(schedule_lines(details)))


def schedules(
    host: Host, namespace: Namespace = "", token: Token = None, debug: DebugOption = False
) -> None:
    """List the schedules."""
    with reported(debug=debug):
        from qatline.pipelines.cluster.server import connect

        for each in connect(host, namespace=namespace, token=token).schedules():
            paused = "\tpaused" if each.paused else ""
            when = each.cron or each.when
            typer.echo(f"{each.name}\t{when}\tmax {each.max_concurrency}{paused}")


def _interval(text: str | None) -> int:
    if text is None:
        return 0
    from qat_lib.errors import ConfigError
    from qatline.pipelines.config.kubernetes_values import parse_seconds

    try:
        return parse_seconds(text)
    except ValueError as error:
        raise ConfigError(f"--every: {error}") from error
