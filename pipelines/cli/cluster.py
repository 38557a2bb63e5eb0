"""``qatline cluster``: run the pipeline on a Kubeflow Pipelines server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qatline.pipelines.cli.cluster_options import Experiment, Host, Namespace, Token
from qatline.pipelines.cli.cluster_schedules import add_schedule_commands
from qatline.pipelines.cli.cluster_views import image_lines
from qatline.pipelines.cli.errors import reported
from qatline.pipelines.cli.options import (
    AcceptRejectedOption,
    CommandLine,
    ConfigOption,
    DebugOption,
    ProfileOption,
    SetOption,
)

app = CommandLine(
    no_args_is_help=True, help="Run or schedule the pipeline on a Kubeflow Pipelines server."
)

Wait = Annotated[bool, typer.Option("--wait", help="Wait for the end of the run.")]
Timeout = Annotated[
    str | None,
    typer.Option(help="Wait at most this long: 90s, 30m, 2h (exit code 124).", show_default=False),
]


@app.command()
def submit(
    host: Host,
    config: ConfigOption = None,
    profile: ProfileOption = None,
    set_: SetOption = None,
    experiment: Experiment = "qatline",
    name: Annotated[
        str | None,
        typer.Option(help="Name of the run (model, data and time).", show_default=False),
    ] = None,
    no_cache: Annotated[
        bool, typer.Option("--no-cache", help="Reuse no step of an earlier run.")
    ] = False,
    wait: Wait = False,
    timeout: Timeout = None,
    accept_rejected: AcceptRejectedOption = False,
    namespace: Namespace = "",
    token: Token = None,
    debug: DebugOption = False,
) -> None:
    """Submit one run."""
    with reported(debug=debug):
        from datetime import datetime

        from qatline.pipelines.cluster.names import run_name
        from qatline.pipelines.cluster.run_identity import has_server
        from qatline.pipelines.cluster.server import connect
        from qatline.pipelines.config.run_config import load_config

        loaded = load_config(config, profiles=profile or [], overrides=set_ or [])
        limit = _seconds(timeout)
        cluster = connect(host, namespace=namespace, token=token)
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
def wait_(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run's id or address.")],
    host: Host,
    timeout: Timeout = None,
    tracking_uri: Annotated[
        str | None,
        typer.Option(
            envvar="MLFLOW_TRACKING_URI",
            help="Tracking server that has the verdict.",
            show_default=False,
        ),
    ] = None,
    accept_rejected: AcceptRejectedOption = False,
    namespace: Namespace = "",
    token: Token = None,
    debug: DebugOption = False,
) -> None:
    """Wait for the end of a run and show its steps as they change.

    Exit codes: 0 succeeded, 1 failed or canceled, 3 rejected by the gate (as the tracking server
    says), 124 not in time.
    """
    with reported(debug=debug):
        from qatline.pipelines.cluster.progress import run_id_of
        from qatline.pipelines.cluster.server import connect

        wanted, limit = run_id_of(run), _seconds(timeout)
        cluster = connect(host, namespace=namespace, token=token)
        cluster.wait(wanted, typer.echo, timeout=limit)
        _end_with_verdict(tracking_uri, wanted, accept_rejected)


@app.command()
def image(
    config: ConfigOption = None,
    profile: ProfileOption = None,
    set_: SetOption = None,
    output: Annotated[
        Path, typer.Option("--output-dir", "-o", help="Folder to write; new or empty.")
    ] = Path("cluster-image"),
    debug: DebugOption = False,
) -> None:
    """Write a Dockerfile for images with your modules, files and TensorRT."""
    with reported(debug=debug):
        from qatline.components.support.user_code import find_user_modules
        from qatline.pipelines.cluster.image import write_image_context
        from qatline.pipelines.config.run_config import load_config

        find_user_modules()
        loaded = load_config(config, profiles=profile or [], overrides=set_ or [])
        context = write_image_context(loaded, output)
        typer.echo("\n".join(image_lines(loaded.cluster.images, context)))


@app.command()
def runtime(
    config: ConfigOption = None,
    profile: ProfileOption = None,
    set_: SetOption = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="File to write (standard output).", show_default=False),
    ] = None,
    namespace: Annotated[str, typer.Option(help="Namespace of the runs.")] = "kubeflow",
    service_account: Annotated[
        str,
        typer.Option(help="Service account of the runs (pipeline-runner).", show_default=False),
    ] = "",
    debug: DebugOption = False,
) -> None:
    """Print what training.workers needs in a cluster, for kubectl apply."""
    with reported(debug=debug):
        from qatline.pipelines.cli.model_views import write_file
        from qatline.pipelines.cluster.runtime import runtime_manifests
        from qatline.pipelines.config.run_config import load_config

        loaded = load_config(config, profiles=profile or [], overrides=set_ or [])
        text = runtime_manifests(loaded.cluster, namespace=namespace, account=service_account)
        if output is None:
            typer.echo(text, nl=False)
        else:
            write_file(output, text)
            typer.echo(f"Wrote {output}")


add_schedule_commands(app)


def _seconds(text: str | None) -> int | None:
    if text is None:
        return None
    from qat_lib.errors import ConfigError
    from qatline.pipelines.config.kubernetes_values import parse_seconds

    try:
        return parse_seconds(text)
    except ValueError as error:
        raise ConfigError(f"--timeout: {error}") from error


def _end_with_verdict(uri: str | None, run_id: str, accept_rejected: bool) -> None:
    """Show the verdict of a run that succeeded; end with its code."""
    if uri is None:
        return
    from qatline.pipelines.cli.run import REJECTED_CODE
    from qatline.pipelines.cluster.verdict import find_verdict

    verdict = find_verdict(uri, run_id)
    typer.echo(f"verdict  {verdict}")
    if verdict == "reject" and not accept_rejected:
        raise typer.Exit(REJECTED_CODE)
