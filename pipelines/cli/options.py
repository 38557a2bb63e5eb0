"""Options shared by several commands, and the ``--json`` output.

An option means the same wherever it stands. Only typer and the standard library are imported.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core

from qat_lib.options import BackendChoice, CalibratorName, CpuChoice

CONFIG_PANEL, PLACE_PANEL, SHOW_PANEL = "What to run", "Storage and caching", "What to show"
CLUSTER_PANEL = "Cluster"


class PlainCommand(typer.core.TyperCommand):
    """Command with help in two columns: options with their values, and descriptions.

    The tables of Rich have up to six. In 80 columns they cut names of options, break the values
    of others inside words, and leave about 16 characters to the descriptions.
    """

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help without Rich."""
        self.rich_markup_mode = None
        super().format_help(ctx, formatter)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options in sections by their panels."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            default = "Arguments" if parameter.param_type_name == "argument" else "Options"
            name = getattr(parameter, "rich_help_panel", None) or default
            if (record := parameter.get_help_record(ctx)) is not None:
                sections.setdefault(name, []).append(record)
        for name, records in sections.items():
            with formatter.section(name):
                formatter.write_dl(records)


class CommandLine(typer.Typer):
    """An app of plain commands."""

    def command(self, *args: Any, **settings: Any) -> Any:
        """Register a command, a ``PlainCommand`` by default."""
        return super().command(*args, **{"cls": PlainCommand, **settings})


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
ExperimentOption = Annotated[
    str, typer.Option(help="KFP experiment.", rich_help_panel=CLUSTER_PANEL)
]
NamespaceOption = Annotated[
    str,
    typer.Option(
        help="Namespace (multi-user servers).", rich_help_panel=CLUSTER_PANEL, show_default=False
    ),
]
TokenOption = Annotated[
    str | None,
    typer.Option(
        envvar="KFP_TOKEN", help="Bearer token.", rich_help_panel=CLUSTER_PANEL, show_default=False
    ),
]
RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="A run's id or folder.")]
OnnxFile = Annotated[
    Path, typer.Argument(metavar="MODEL.onnx", help="ONNX file, from any exporter.")
]
EngineFile = Annotated[
    Path, typer.Argument(metavar="MODEL.engine", help="Engine file, next to its manifest.")
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
    typer.Option(help=".npy of targets, where --data is a .npy.", show_default=False),
]
TaskOption = Annotated[
    str | None,
    typer.Option(
        help="Built-in task, or module:Class. Default: derived from the targets.",
        show_default=False,
    ),
]
InputDataOption = Annotated[
    Path,
    typer.Option(
        help=".npy of inputs, as the model takes them, or .npz of several by name; no labels."
    ),
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
        help="File of intermediate results, to resume from.", show_default="next to the model"
    ),
]


def print_json(content: Any) -> None:
    """Print one JSON object."""
    sys.stdout.write(json.dumps(content) + "\n")
