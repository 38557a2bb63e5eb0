"""``qatline sweep``: compare many configs, and find the best one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import typer

from qatline.pipelines.cli.options import (
    CLUSTER_PANEL,
    CONFIG_PANEL,
    PLACE_PANEL,
    ExperimentOption,
    JsonOption,
    NamespaceOption,
    ProfileOption,
    QuietOption,
    RunsDirOption,
    SetOption,
    TokenOption,
)

if TYPE_CHECKING:
    from qatline.pipelines.sweep.space import Space

SamplerChoice: TypeAlias = Literal["grid", "tpe", "random"]
GoalChoice: TypeAlias = Literal["quality", "latency", "size"]

_TRIALS_PANEL = "Trials"


def sweep_configs(
    config: Annotated[
        Path, typer.Argument(metavar="CONFIG", help="YAML config to vary.", show_default=False)
    ],
    over: Annotated[
        list[str],
        typer.Option(
            "--over",
            metavar="KEY=VALUES",
            help="Key to vary, with V1,V2,... or LOW..HIGH (LOW..HIGH:log); repeatable.",
            rich_help_panel=CONFIG_PANEL,
            show_default=False,
        ),
    ],
    profile: ProfileOption = None,
    set_: SetOption = None,
    sampler: Annotated[
        SamplerChoice,
        typer.Option(
            help="grid: all combinations; or a sampler of Optuna.", rich_help_panel=_TRIALS_PANEL
        ),
    ] = "grid",
    trials: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=1000,
            help="Number of trials, without a grid (20).",
            rich_help_panel=_TRIALS_PANEL,
            show_default=False,
        ),
    ] = None,
    prune: Annotated[
        str | None,
        typer.Option(
            metavar="DROP",
            help="End a trial before QAT if calibration alone loses more than this: 5%.",
            rich_help_panel=_TRIALS_PANEL,
            show_default=False,
        ),
    ] = None,
    workers: Annotated[
        int, typer.Option(min=1, help="Concurrent trials.", rich_help_panel=_TRIALS_PANEL)
    ] = 1,
    cpus: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="CPUs of all trials together (all).",
            rich_help_panel=_TRIALS_PANEL,
            show_default=False,
        ),
    ] = None,
    best: Annotated[
        GoalChoice,
        typer.Option(help="Measure of the best trial.", rich_help_panel=_TRIALS_PANEL),
    ] = "quality",
    under: Annotated[
        list[str] | None,
        typer.Option(
            "--under",
            metavar="BOUND",
            help=(
                "Bound on the best trial: 'latency_ms<2', 'size<300kB', 'drop<0.5%' or "
                "'quality>97%'; repeatable."
            ),
            rich_help_panel=_TRIALS_PANEL,
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path,
        typer.Option("--output-dir", "-o", help="Folder to write.", rich_help_panel=PLACE_PANEL),
    ] = Path("sweep"),
    runs_dir: RunsDirOption = None,
    host: Annotated[
        str,
        typer.Option(
            metavar="URL",
            help="URL of a KFP API, to run the trials there (this machine).",
            rich_help_panel=CLUSTER_PANEL,
            show_default=False,
        ),
    ] = "",
    experiment: ExperimentOption = "qatline",
    namespace: NamespaceOption = "",
    token: TokenOption = None,
    tracking_uri: Annotated[
        str | None,
        typer.Option(
            help="URL of the MLflow server from this machine (tracking.uri).",
            rich_help_panel=CLUSTER_PANEL,
            show_default=False,
        ),
    ] = None,
    json_: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Compare many configs in one command, with one run each.

    Runs share the step cache: common steps run once. An interrupted sweep is resumed by the same
    command. Ends with exit code 1 if no trial is within the bounds.
    """
    from qat_lib.errors import ConfigError, MissingPackageError
    from qat_lib.support.extras import install_hint, missing_packages
    from qatline.pipelines.cli import sweep_views
    from qatline.pipelines.cli.run import installed_version
    from qatline.pipelines.sweep.measures import parse_bound
    from qatline.pipelines.sweep.runner import SweepPlan

    if missing := missing_packages(["optuna"]):
        raise MissingPackageError(
            f"A sweep needs the package optuna, which is not installed. {install_hint(missing)}"
        )
    if trials is not None and sampler == "grid":
        raise ConfigError("--trials: expected --sampler tpe or random; a grid runs all its trials.")
    plan = SweepPlan(
        folder=output,
        space=_space(config, profile, set_, over, runs_dir),
        sampler=sampler,
        trials=trials or 20,
        workers=workers,
        cpus=cpus,
        goal=best,
        bounds=[parse_bound(text) for text in under or ()],
        prune=None if prune is None else _drop(prune),
        host=host,
        tracking_uri=tracking_uri,
        version=installed_version(),
    )
    if tracking_uri is not None and not host:
        raise ConfigError(
            "--tracking-uri: expected --host as well; a sweep of this machine records its runs at "
            "tracking.uri."
        )
    on_cluster = None
    if host:
        if prune is not None or cpus is not None:
            option = "--cpus" if prune is None else "--prune"
            raise ConfigError(
                f"{option}: expected a sweep of this machine, received --host {host}."
            )
        from qatline.pipelines.cluster.server import connect
        from qatline.pipelines.sweep.cluster_trials import ClusterTrials

        cluster = connect(host, namespace=namespace, token=token)
        on_cluster = ClusterTrials(plan, cluster, experiment=experiment)
    result = sweep_views.sweep_command(plan, as_json=json_, quiet=quiet, trials=on_cluster)
    if result.best is None:
        raise typer.Exit(1)


def _drop(text: str) -> float:
    from qat_lib.errors import ConfigError
    from qat_lib.optimization.metrics import parse_drop

    try:
        return parse_drop(text)
    except ConfigError as error:
        raise ConfigError(f"--prune: {error}") from error


def _space(
    config: Path,
    profiles: list[str] | None,
    overrides: list[str] | None,
    over: list[str],
    runs_dir: Path | None,
) -> Space:
    from qatline.pipelines.config.run_config import ConfigReading, read_config
    from qatline.pipelines.sweep.space import Space, parse_parameter

    def read(texts: Sequence[str]) -> ConfigReading:
        return read_config(
            config,
            profiles=profiles or (),
            overrides=[*(overrides or ()), *texts],
            runs_dir=runs_dir,
        )

    return Space(parameters=[parse_parameter(text) for text in over], read=read)
