"""Options that several commands on single files have, and what ``--json`` prints."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

OnnxFile = Annotated[
    Path, typer.Argument(metavar="MODEL.onnx", help="ONNX file, from any exporter.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
DebugOption = Annotated[bool, typer.Option("--debug", help="Show tracebacks.")]


def print_json(content: Any) -> None:
    """Print one JSON object."""
    sys.stdout.write(json.dumps(content) + "\n")
