"""The ``qatline`` command.

Only light modules are imported here; each command imports what it needs when it
runs, so that ``qatline --help`` is quick.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from qatline.components.support.credentials import mask_values
from qatline.components.support.process import collect_rarely
from qatline.components.support.scrubbed_output import scrub_output
from qatline.pipelines.cli import cluster as cli_cluster
from qatline.pipelines.cli import config as cli_config
from qatline.pipelines.cli import model as cli_model
from qatline.pipelines.cli import records as cli_records
from qatline.pipelines.cli import registry as cli_registry
from qatline.pipelines.cli import runs as cli_runs
from qatline.pipelines.cli import serving as cli_serving
from qatline.pipelines.cli import sweep as cli_sweep
from qatline.pipelines.cli.command import DEFAULT_CONFIG, ConfigChoice, command
from qatline.pipelines.cli.options import (
    PLACE_PANEL,
    AcceptRejectedOption,
    CommandLine,
    ConfigSeedOption,
    JsonOption,
    QuietOption,
    RunArgument,
    RunsDirOption,
)

app = CommandLine(
    name="qatline",
    help="From a Keras model to a checked INT8 engine.",
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(cli_runs.app, name="runs", rich_help_panel="Runs")
app.add_typer(cli_config.app, name="config", rich_help_panel="Runs")
app.add_typer(cli_cluster.app, name="cluster", rich_help_panel="Runs")


@app.command(rich_help_panel="Runs")
@command
def run(
    choice: ConfigChoice = DEFAULT_CONFIG,
    seed: ConfigSeedOption = None,
    runs_dir: RunsDirOption = None,
    no_cache: Annotated[
        bool,
        typer.Option("--no-cache", help="Disable the step cache.", rich_help_panel=PLACE_PANEL),
    ] = False,
    accept_rejected: AcceptRejectedOption = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Only check, like qatline check."),
    ] = False,
    json_: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Run the whole pipeline on this machine.

    The exit code is 0 if the engine was promoted, 3 if the gate rejected it.
    """
    if dry_run:
        from qatline.pipelines.cli.check import check_command

        check_command(choice.seeded(seed), runs_dir, as_json=json_, cache=not no_cache)
        return
    from qatline.pipelines.cli import run as runner

    config = choice.seeded(seed).load(runs_dir)
    result = runner.run_command(config, cache=not no_cache, as_json=json_, quiet=quiet)
    runner.end_with(result, accept_rejected=accept_rejected)


@app.command("check", rich_help_panel="Runs")
@command
def check_(
    choice: ConfigChoice = DEFAULT_CONFIG,
    seed: ConfigSeedOption = None,
    runs_dir: RunsDirOption = None,
    json_: JsonOption = False,
) -> None:
    """Check a config, its data, model and stores before a run; report all mistakes.

    It trains and writes nothing. The exit code is 0 without mistakes, else 2.
    """
    from qatline.pipelines.cli.check import check_command

    check_command(choice.seeded(seed), runs_dir, as_json=json_)


@app.command(rich_help_panel="Runs")
@command
def resume(
    run_id: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN",
            help="A run's id or folder (the latest unfinished one).",
            show_default=False,
        ),
    ] = None,
    choice: ConfigChoice = DEFAULT_CONFIG,
    seed: ConfigSeedOption = None,
    runs_dir: RunsDirOption = None,
    accept_rejected: AcceptRejectedOption = False,
    json_: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Resume an interrupted run.

    A given config must match the run's.
    """
    from qatline.pipelines.cli import run as runner

    choice = choice.seeded(seed)
    result = runner.resume_command(choice, runs_dir, run_id=run_id, as_json=json_, quiet=quiet)
    runner.end_with(result, accept_rejected=accept_rejected)


@app.command("compile", rich_help_panel="Runs")
@command
def compile_(
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write.")] = Path(
        "pipeline.yaml"
    ),
    choice: ConfigChoice = DEFAULT_CONFIG,
) -> None:
    """Compile the pipeline to Kubeflow IR, with the config as default parameters."""
    from qatline.pipelines.cluster.compile import compile_pipeline

    compile_pipeline(choice.load(), output)
    typer.echo(f"Wrote {output}")


@app.command("components", rich_help_panel="Runs")
@command
def components_(
    output: Annotated[Path, typer.Option("--output-dir", "-o", help="Folder to write.")] = Path(
        "components"
    ),
    choice: ConfigChoice = DEFAULT_CONFIG,
) -> None:
    """Write each step as a Kubeflow component, for pipelines of your own."""
    from qatline.pipelines.cluster.component_files import write_components

    files = write_components(output, choice.load().cluster.images)
    typer.echo(f"Wrote {len(files)} components to {output}")


@app.command(rich_help_panel="Runs")
@command
def ui(
    run: RunArgument,
    runs_dir: RunsDirOption = None,
    port: Annotated[int, typer.Option(help="Port of the UI.")] = 5000,
) -> None:
    """Open the MLflow UI on a run."""
    from qatline.pipelines.cli.tracking_ui import open_ui

    open_ui(run, output=runs_dir or Path("runs"), port=port)


@app.command(rich_help_panel="Runs")
@command
def report(
    run: cli_runs.RunOrLatest = None,
    open_: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
    runs_dir: RunsDirOption = None,
) -> None:
    """Print the path of a run's HTML report."""
    import webbrowser

    from qatline.pipelines.run.folder import find_or_latest

    path = find_or_latest(runs_dir or Path("runs"), run).report()
    typer.echo(path)
    if open_:
        webbrowser.open(path.as_uri())


@app.command(rich_help_panel="Setup")
@command
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="New or empty folder.")],
) -> None:
    """Write a project with a config, a model and a task of your own, a test and CI."""
    from qatline.pipelines.cli.init import create_project

    for name in create_project(folder):
        typer.echo(f"Wrote {folder / name}")
    typer.echo(f"\nNext: cd {folder} && qatline run --config qatline.yaml")


@app.command(rich_help_panel="Setup")
@command
def doctor(json_: JsonOption = False) -> None:
    """Check the installation, and show the commands for missing parts.

    The exit code is 1 if an installed part does not work, else 0.
    """
    from qatline.pipelines.cli.doctor import report_installation

    report_installation(as_json=json_)


app.command("sweep", rich_help_panel="Runs")(command(cli_sweep.sweep_configs))
cli_registry.add_registry_commands(app)
cli_records.add_record_commands(app)
cli_model.register(app)
cli_serving.add_serving_commands(app)


def _show_version(wanted: bool) -> None:
    if wanted:
        from qatline.pipelines.cli.run import installed_version

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
    scrub_output(stdout=mask_values)
    collect_rarely()
    app()


if __name__ == "__main__":
    main()
