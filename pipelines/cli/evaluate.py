"""``qatline evaluate``: accuracy of one model or engine on labelled data."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from qatline.pipelines.cli.options import (
    JsonOption,
    LabelsOption,
    TestDataOption,
    print_json,
)


def evaluate_command(
    model: Annotated[
        Path,
        typer.Argument(metavar="MODEL", help="Keras model, ONNX file, or engine with manifest."),
    ],
    data: TestDataOption,
    labels: LabelsOption = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Batch size.")] = 32,
    latency: Annotated[
        bool, typer.Option("--latency", help="Also measure latency (not of Keras models).")
    ] = False,
    seconds: Annotated[
        float, typer.Option(min=0.01, max=3600, help="With --latency: seconds to measure.")
    ] = 2.0,
    json_: JsonOption = False,
) -> None:
    """Measure the accuracy of a Keras model, ONNX file or engine.

    An ONNX file runs in ONNX Runtime.
    """
    from qatline.components.data.labelled import TEST_PAIRS, read_labelled
    from qatline.pipelines.cli import accuracy_views
    from qatline.pipelines.cli.evaluation import evaluate_file

    with tempfile.TemporaryDirectory(prefix="qatline-") as scratch:
        part = read_labelled(data, labels, Path(scratch), TEST_PAIRS)
        found = evaluate_file(
            model, part, data, batch_size=batch_size, seconds=seconds if latency else None
        )
    if json_:
        print_json(found.to_dict())
    else:
        accuracy_views.show_evaluation(found)
