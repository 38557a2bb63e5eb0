"""Options shared by several commands, and the ``--json`` output.

An option means the same wherever it stands. Only typer and the standard library are imported.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from qat_lib.errors import ConfigError
from qat_lib.options import BackendChoice, CalibratorName, CpuChoice
from qatline.pipelines.cli.errors import say_renamed

CONFIG_PANEL, PLACE_PANEL, SHOW_PANEL = "What to run", "Storage and caching", "What to show"

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config", "-c", help="YAML config.", rich_help_panel=CONFIG_PANEL, show_default=False
    ),
]
ProfileOption = Annotated[
    list[str] | None,
    typer.Option(
        "--profile",
        "-p",
        help="Profile of the config.",
        rich_help_panel=CONFIG_PANEL,
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
        rich_help_panel=CONFIG_PANEL,
        show_default=False,
    ),
]
ConfigSeedOption = Annotated[
    int | None,
    typer.Option(
        "--seed", help="Same as --set seed=N.", rich_help_panel=CONFIG_PANEL, show_default=False
    ),
]
RunsDirOption = Annotated[
    Path | None,
    typer.Option(
        "--runs-dir",
        metavar="PATH",
        help="Folder of the runs (runs).",
        rich_help_panel=PLACE_PANEL,
        show_default=False,
    ),
]
OldRunsDirOption = Annotated[
    Path | None,
    typer.Option("--output", "-o", help="Deprecated: --runs-dir.", hidden=True),
]
JsonOption = Annotated[
    bool,
    typer.Option(
        "--json", help="Print one JSON object and nothing else.", rich_help_panel=SHOW_PANEL
    ),
]
QuietOption = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print only the result.", rich_help_panel=SHOW_PANEL)
]
AcceptRejectedOption = Annotated[
    bool,
    typer.Option(
        "--accept-rejected", help="Exit with 0, not 3, if rejected.", rich_help_panel=SHOW_PANEL
    ),
]
DebugOption = Annotated[
    bool, typer.Option("--debug", help="Show tracebacks.", rich_help_panel=SHOW_PANEL)
]
RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="A run's id or folder.")]
OnnxFile = Annotated[
    Path, typer.Argument(metavar="MODEL.onnx", help="ONNX file, from any exporter.")
]
EngineFile = Annotated[
    Path, typer.Argument(metavar="MODEL.engine", help="Engine file, with its manifest beside it.")
]
TrainingDataOption = Annotated[
    Path,
    typer.Option(help=".npz of x, y (x_val, y_val), or .npy of inputs, as the model takes them."),
]
TestDataOption = Annotated[
    Path,
    typer.Option(help=".npz of x_test, y_test (or x, y), or .npy, as the model takes them."),
]
LabelsOption = Annotated[
    Path | None,
    typer.Option(help=".npy of labels, where --data is a .npy.", show_default=False),
]
InputDataOption = Annotated[
    Path, typer.Option(help=".npy of inputs, as the model takes them; no labels.")
]
SpecOption = Annotated[
    Path | None, typer.Option(help="YAML file of QuantizationSpec entries.", show_default=False)
]
CalibratorOption = Annotated[CalibratorName, typer.Option(help="Calibration method.")]
BackendOption = Annotated[
    BackendChoice,
    typer.Option(help="Backend that will run the engine; auto: the best one on this machine."),
]
CpuOption = Annotated[
    CpuChoice,
    typer.Option(help="CPU that will run the engine: avx2 is x86 without VNNI; auto: this one."),
]
JournalOption = Annotated[
    Path | None,
    typer.Option(
        help="File of intermediate results, to resume from.", show_default="beside the model"
    ),
]


def runs_folder(runs_dir: Path | None, output: Path | None) -> Path | None:
    """Return the runs folder from ``--runs-dir`` or the deprecated ``--output``.

    Raises:
        ConfigError: Both are given.
    """
    if output is None:
        return runs_dir
    if runs_dir is not None:
        raise ConfigError("Expected --runs-dir alone. Received --output, its old name, as well.")
    say_renamed("-o/--output of the folder of runs", "--runs-dir")
    return output


def print_json(content: Any) -> None:
    """Print one JSON object."""
    sys.stdout.write(json.dumps(content) + "\n")
