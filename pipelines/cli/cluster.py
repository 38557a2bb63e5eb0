"""``qatline cluster``: run the pipeline on a Kubeflow Pipelines server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qatline.pipelines.cli.cluster_views import image_lines, schedule_lines
from qatline.pipelines.cli.command import DEFAULT_CONFIG, ConfigChoice, command
from qatline.pipelines.cli.options import (
    AcceptRejectedOption,
    CommandLine,
    ExperimentOption,
    NamespaceOption,
    TokenOption,
)

if TYPE_CHECKING:
    from qatline.pipelines.cluster.server import Cluster

app = CommandLine(
    no_args_is_help=True, help="Run or schedule the pipeline on a Kubeflow Pipelines server."
)

Host = Annotated[str, typer.Option(envvar="KFP_ENDPOINT", help="URL of the KFP API.")]
ScheduleName = Annotated[str, typer.Argument(metavar="NAME", help="Schedule name.")]
Wait = Annotated[bool, typer.Option("--wait", help="Wait for the end of the run.")]
Timeout = Annotated[
    str | None,
    typer.Option(help="Wait at most this long: 90s, 30m, 2h (exit code 124).", show_default=False),
]


@app.command()
@command
def submit(
    host: Host,
    choice: ConfigChoice = DEFAULT_CONFIG,
    experiment: ExperimentOption = "qatline",
    name: Annotated[
        str | None,
        typer.Option(help="Name of the run (model, data and time).", show_default=False),
    ] = None,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Disable KFP caching.")] = False,
    wait: Wait = False,
    timeout: Timeout = None,
    accept_rejected: AcceptRejectedOption = False,
    namespace: NamespaceOption = "",
    token: TokenOption = None,
) -> None:
    """Submit one run."""
    from datetime import datetime

    from qatline.pipelines.cluster.run_identity import has_server, run_name

    loaded, limit = choice.load(), _seconds("--timeout", timeout)
    cluster = _connect(host, namespace, token)
    run = cluster.submit(
        loaded,
        experiment=experiment,
        name=name or run_name(loaded, datetime.now()),
        caching=not no_cache,
    )
    typer.echo(run.url)
    if wait:
        cluster.wait(run.run_id, typer.echo, timeout=limit)
        server = loaded.tracking.uri if has_server(loaded) else None
        _end_with_verdict(server, run.run_id, accept_rejected)


@app.command("wait")
@command
def wait_(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run's id or address.")],
    host: Host,
    timeout: Timeout = None,
    tracking_uri: Annotated[
        str | None,
        typer.Option(
            envvar="MLFLOW_TRACKING_URI",
            help="MLflow server to read the verdict from.",
            show_default=False,
        ),
    ] = None,
    accept_rejected: AcceptRejectedOption = False,
    namespace: NamespaceOption = "",
    token: TokenOption = None,
) -> None:
    """Wait for the end of a run and show its steps as they change.

    Exit codes: 0 succeeded, 1 failed or canceled, 3 rejected by the gate (as the tracking server
    says), 124 not in time.
    """
    from qatline.pipelines.cluster.progress import run_id_of

    wanted, limit = run_id_of(run), _seconds("--timeout", timeout)
    _connect(host, namespace, token).wait(wanted, typer.echo, timeout=limit)
    _end_with_verdict(tracking_uri, wanted, accept_rejected)


@app.command()
@command
def image(
    choice: ConfigChoice = DEFAULT_CONFIG,
    output: Annotated[
        Path, typer.Option("--output-dir", "-o", help="Folder to write; new or empty.")
    ] = Path("cluster-image"),
) -> None:
    """Write a Dockerfile for images with your modules, files and TensorRT."""
    from qatline.components.support.user_code import find_user_modules
    from qatline.pipelines.cluster.image import write_image_context

    find_user_modules()
    loaded = choice.load()
    context = write_image_context(loaded, output)
    typer.echo("\n".join(image_lines(loaded.cluster.images, context)))


@app.command()
@command
def runtime(
    choice: ConfigChoice = DEFAULT_CONFIG,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="File to write (standard output).", show_default=False),
    ] = None,
    namespace: Annotated[str, typer.Option(help="Namespace of the runs.")] = "kubeflow",
    service_account: Annotated[
        str,
        typer.Option(help="Service account of the runs (pipeline-runner).", show_default=False),
    ] = "",
) -> None:
    """Print the runtime and role for training.workers, for kubectl apply."""
    from qatline.pipelines.cli.model_views import write_file
    from qatline.pipelines.cluster.train_jobs import runtime_manifests

    loaded = choice.load()
    text = runtime_manifests(loaded.cluster, namespace=namespace, account=service_account)
    if output is None:
        typer.echo(text, nl=False)
    else:
        write_file(output, text)
        typer.echo(f"Wrote {output}")


@app.command()
@command
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
    choice: ConfigChoice = DEFAULT_CONFIG,
    experiment: ExperimentOption = "qatline",
    max_concurrency: Annotated[int, typer.Option(help="Maximum concurrent runs, 1 to 10.")] = 1,
    namespace: NamespaceOption = "",
    token: TokenOption = None,
) -> None:
    """Create or update the schedule NAME (idempotent)."""
    from qatline.pipelines.cluster.schedule import Schedule

    wanted = Schedule(
        name=name, cron=cron, every=_seconds("--every", every) or 0, max_concurrency=max_concurrency
    )
    loaded, server = choice.load(), _connect(host, namespace, token)
    done = server.apply_schedule(loaded, wanted, experiment=experiment)
    typer.echo(f"Schedule {name}: {done}")


def _add_verb(name: str, method: str, done: str, text: str) -> None:
    @app.command(name, help=text)
    @command
    def change(
        name: ScheduleName, host: Host, namespace: NamespaceOption = "", token: TokenOption = None
    ) -> None:
        getattr(_connect(host, namespace, token), method)(name)
        typer.echo(f"Schedule {name}: {done}")


for _verb in (
    ("unschedule", "delete_schedule", "removed", "Remove the schedule NAME."),
    (
        *("pause", "pause_schedule", "paused"),
        "Pause the schedule NAME; runs that have started go on.",
    ),
    (
        *("resume", "resume_schedule", "resumed"),
        "Resume the paused schedule NAME without catching up on missed runs.",
    ),
):
    _add_verb(*_verb)


@app.command("show")
@command
def show_schedule(
    name: ScheduleName, host: Host, namespace: NamespaceOption = "", token: TokenOption = None
) -> None:
    """Show the schedule NAME and its latest runs."""
    details = _connect(host, namespace, token).show_schedule(name)
    typer.echo("\n".join(schedule_lines(details)))


@app.command()
@command
def schedules(host: Host, namespace: NamespaceOption = "", token: TokenOption = None) -> None:
    """List the schedules."""
    for each in _connect(host, namespace, token).schedules():
        paused = "\tpaused" if each.paused else ""
        when = each.cron or each.when
        typer.echo(f"{each.name}\t{when}\tmax {each.max_concurrency}{paused}")


def _connect(host: str, namespace: str, token: str | None) -> Cluster:
    from qatline.pipelines.cluster.server import connect

    return connect(host, namespace=namespace, token=token)


def _seconds(option: str, text: str | None) -> int | None:
    if text is None:
        return None
    from qat_lib.errors import ConfigError
    from qatline.pipelines.config.kubernetes_values import parse_seconds

    try:
        return parse_seconds(text)
    except ValueError as error:
        raise ConfigError(f"{option}: {error}") from error


def _end_with_verdict(uri: str | None, run_id: str, accept_rejected: bool) -> None:
    """Show the verdict of a run that succeeded; end with its code."""
    if uri is None:
        return
    from qatline.pipelines.cli.run import REJECTED_CODE
    from qatline.pipelines.cluster.progress import find_verdict

    verdict = find_verdict(uri, run_id)
    typer.echo(f"verdict  {verdict}")
    if verdict == "reject" and not accept_rejected:
        raise typer.Exit(REJECTED_CODE)
