"""The ``qatline`` command.

Only typer and the standard library are imported here; each command imports what it needs when it
runs, so that ``qatline --help`` is quick.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from pipelines.cli import cluster as cli_cluster
from pipelines.cli import config as cli_config
from pipelines.cli import model as cli_model
from pipelines.cli.errors import reported

app = typer.Typer(
    name="qatline",
    help="From a Keras model to a checked INT8 engine.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(cli_config.app, name="config", rich_help_panel="Runs")
app.add_typer(cli_cluster.app, name="cluster", rich_help_panel="Runs")

_CONFIG, _PLACE, _SHOW = "What to run", "Where, and what to reuse", "What to show"

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config", "-c", help="YAML config.", rich_help_panel=_CONFIG, show_default=False
    ),
]
ProfileOption = Annotated[
    list[str] | None,
    typer.Option(
        "--profile",
        "-p",
        help="Profile of the config.",
        rich_help_panel=_CONFIG,
        show_default=False,
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        "-s",
        metavar="KEY=VALUE",
        help="Override a value: training.epochs=5.",
        rich_help_panel=_CONFIG,
        show_default=False,
    ),
]
OutputOption = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        help="Folder of the runs (runs).",
        rich_help_panel=_PLACE,
        show_default=False,
    ),
]
DebugOption = Annotated[
    bool, typer.Option("--debug", help="Show tracebacks.", rich_help_panel=_SHOW)
]


@app.command(rich_help_panel="Runs")
def run(
    run_id: Annotated[
        str | None,
        typer.Argument(
            metavar="[RUN_ID]", help="Run to resume (default: the latest).", show_default=False
        ),
    ] = None,
    config: ConfigOption = None,
    profile: ProfileOption = None,
    set_: SetOption = None,
    seed: Annotated[
        int | None,
        typer.Option(
            "--seed", help="Same as --set seed=N.", rich_help_panel=_CONFIG, show_default=False
        ),
    ] = None,
    output: OutputOption = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume an interrupted run.", rich_help_panel=_PLACE)
    ] = False,
    no_cache: Annotated[
        bool,
        typer.Option(
            "--no-cache", help="Reuse no results of earlier runs.", rich_help_panel=_PLACE
        ),
    ] = False,
    json_: Annotated[
        bool,
        typer.Option(
            "--json", help="Print one JSON object and nothing else.", rich_help_panel=_SHOW
        ),
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print only the result.", rich_help_panel=_SHOW)
    ] = False,
    debug: DebugOption = False,
) -> None:
    """Run the whole pipeline on this machine: train, quantize, fine-tune, export, build, evaluate, promote."""
    overrides = [*(set_ or []), *([f"seed={seed}"] if seed is not None else [])]
    with reported(debug=debug, as_json=json_):
        from pipelines.cli.run import run_command

        run_command(
            config=config,
            profiles=profile or [],
            overrides=overrides,
            output=output,
            resume=resume,
            run_id=run_id,
            cache=not no_cache,
            as_json=json_,
            quiet=quiet,
        )


@app.command("compile", rich_help_panel="Runs")
def compile_(
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write.")] = Path(
        "pipeline.yaml"
    ),
    config: ConfigOption = None,
    profile: ProfileOption = None,
    set_: SetOption = None,
    debug: DebugOption = False,
) -> None:
    """Compile the pipeline to Kubeflow IR, with the config as default parameters."""
    with reported(debug=debug):
        from pipelines.cluster.compile import compile_pipeline
        from pipelines.config.run_config import load_config

        compile_pipeline(load_config(config, profiles=profile or [], overrides=set_ or []), output)
        typer.echo(f"Wrote {output}")


@app.command("compare", rich_help_panel="Runs")
def compare_command(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN]...", help="Ids or folders (the last five).", show_default=False
        ),
    ] = None,
    output: OutputOption = None,
    debug: DebugOption = False,
) -> None:
    """Compare runs: differing config values and metrics, from MLflow."""
    with reported(debug=debug):
        from pipelines.run.compare import compare_runs

        compare_runs(runs or [], output=output or Path("runs"))


@app.command(rich_help_panel="Runs")
def ui(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run's id or folder.")],
    output: OutputOption = None,
    port: Annotated[int, typer.Option(help="Port of the UI.")] = 5000,
    debug: DebugOption = False,
) -> None:
    """Open the MLflow UI on a run."""
    with reported(debug=debug):
        from pipelines.cli.tracking_ui import open_ui

        open_ui(run, output=output or Path("runs"), port=port)


cli_model.register(app)


def _show_version(wanted: bool) -> None:
    if wanted:
        from pipelines.cli.run import installed_version

        typer.echo(f"qatline {installed_version()}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Show the version and exit.", is_eager=True, callback=_show_version
        ),
    ] = False,
) -> None:
    """From a Keras model to a checked INT8 engine."""


def main() -> None:
    """Run the command line; the entry point of the ``qatline`` script."""
    # Rich leaves a column for nothing on terminals that report 0 columns, such as some CI runners.
    if os.environ.get("COLUMNS") == "0":
        del os.environ["COLUMNS"]
    app()


if __name__ == "__main__":
    main()
