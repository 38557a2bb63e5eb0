"""``qatline cluster``: send the pipeline to a Kubeflow Pipelines server."""

from __future__ import annotations

from typing import Annotated

import typer

from pipelines.cli.errors import reported
from pipelines.cli.options import ConfigOption, DebugOption, ProfileOption, SetOption

app = typer.Typer(
    no_args_is_help=True, help="Run or schedule the pipeline on a Kubeflow Pipelines server."
)

Host = Annotated[str, typer.Option(envvar="KFP_ENDPOINT", help="URL of the KFP API.")]
Namespace = Annotated[str, typer.Option(help="Namespace (multi-user servers).", show_default=False)]
Token = Annotated[
    str | None, typer.Option(envvar="KFP_TOKEN", help="Bearer token.", show_default=False)
]
Experiment = Annotated[str, typer.Option(help="KFP experiment.")]


@app.command()
def submit(
    host: Host,
    config: ConfigOption = None,
    profile: ProfileOption = None,
    set_: SetOption = None,
    experiment: Experiment = "qatline",
    name: Annotated[str, typer.Option(help="Name of the run.")] = "qatline",
    no_cache: Annotated[
        bool, typer.Option("--no-cache", help="Reuse no step of an earlier run.")
    ] = False,
    namespace: Namespace = "",
    token: Token = None,
    debug: DebugOption = False,
) -> None:
    """Submit one run."""
    with reported(debug=debug):
        from pipelines.cluster.server import connect
        from pipelines.config.run_config import load_config

        loaded = load_config(config, profiles=profile or [], overrides=set_ or [])
        run = connect(host, namespace=namespace, token=token).submit(
            loaded, experiment=experiment, name=name, caching=not no_cache
        )
        typer.echo(run.url)


@app.command()
def schedule(
    name: Annotated[str, typer.Argument(help="Schedule name.")],
    cron: Annotated[str, typer.Option(help="Six fields, seconds first: '0 0 2 * * *'.")],
    host: Host,
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
        from pipelines.cluster.server import Schedule, connect
        from pipelines.config.run_config import load_config

        wanted = Schedule(name=name, cron=cron, max_concurrency=max_concurrency)
        loaded = load_config(config, profiles=profile or [], overrides=set_ or [])
        done = connect(host, namespace=namespace, token=token).apply_schedule(
            loaded, wanted, experiment=experiment
        )
        typer.echo(f"Schedule {name}: {done}")


@app.command()
def unschedule(
    name: Annotated[str, typer.Argument(help="The schedule to remove.")],
    host: Host,
    namespace: Namespace = "",
    token: Token = None,
    debug: DebugOption = False,
) -> None:
    """Remove the schedule NAME."""
    with reported(debug=debug):
        from pipelines.cluster.server import connect

        connect(host, namespace=namespace, token=token).delete_schedule(name)
        typer.echo(f"Schedule {name}: removed")


@app.command()
def schedules(
    host: Host, namespace: Namespace = "", token: Token = None, debug: DebugOption = False
) -> None:
    """List the schedules."""
    with reported(debug=debug):
        from pipelines.cluster.server import connect

        for each in connect(host, namespace=namespace, token=token).schedules():
            typer.echo(f"{each.name}\t{each.cron}\tmax {each.max_concurrency}")
