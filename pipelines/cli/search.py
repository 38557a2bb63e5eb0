"""``qatline search``: find the layers to keep in float for a bounded loss of quality."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

from qat_lib.errors import ConfigError
from qatline.pipelines.cli.data_files import check_inputs
from qatline.pipelines.cli.diagnose import default_journal
from qatline.pipelines.cli.options import (
    BackendOption,
    CalibratorOption,
    CpuOption,
    JournalOption,
    JsonOption,
    LabelsOption,
    SpecOption,
    TaskOption,
    print_json,
)

if TYPE_CHECKING:
    from qat_lib.keras.search import PlacementResult

MetricChoice: TypeAlias = Literal["accuracy", "agreement", "fidelity"]
ObjectiveChoice: TypeAlias = Literal["fewest", "fastest"]


def search_file(
    model: Annotated[
        Path, typer.Argument(metavar="MODEL.keras", help="Keras model in floating point.")
    ],
    data: Annotated[
        Path,
        typer.Option(help=".npz of x_test, y_test (or x, y), or .npy of inputs, to measure on."),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="YAML spec to write (default: only show it).", show_default=False
        ),
    ] = None,
    labels: LabelsOption = None,
    task: TaskOption = None,
    calibration: Annotated[
        Path | None,
        typer.Option(help=".npy of inputs to calibrate on.", show_default="--data"),
    ] = None,
    max_drop: Annotated[str, typer.Option(help="Largest accepted drop of the metric.")] = "0.5%",
    metric: Annotated[
        MetricChoice | None,
        typer.Option(
            help="accuracy; agreement with FP32's labels; fidelity of the outputs.",
            show_default="the task's, with targets",
        ),
    ] = None,
    objective: Annotated[
        ObjectiveChoice, typer.Option(help="Fewest layers in float, or the fastest engine.")
    ] = "fewest",
    samples: Annotated[
        int, typer.Option(min=1, help="Samples to measure on, from the start.")
    ] = 1000,
    backend: BackendOption = "auto",
    cpu: CpuOption = "auto",
    engines: Annotated[
        bool,
        typer.Option("--engines/--no-engines", help="Build engines and compare their speed."),
    ] = True,
    batch_size: Annotated[int, typer.Option(min=1, help="Batch size of the engines.")] = 1,
    seconds: Annotated[
        float, typer.Option(min=0.01, max=3600, help="Seconds to measure each engine.")
    ] = 2.0,
    evaluations: Annotated[
        int, typer.Option(min=1, help="Maximum number of placements to evaluate.")
    ] = 64,
    spec: SpecOption = None,
    calibrator: CalibratorOption = "auto",
    journal: JournalOption = None,
    json_: JsonOption = False,
) -> None:
    """Find the layers to keep in float for a bounded loss of accuracy.

    Ends with exit code 1 where no placement is within the bound, or INT8 is not at least
    1.02 times as fast as the fastest float engine. An interrupted search resumes where it stopped.
    """
    from qatline.pipelines.cli.quiet_import import import_tensorflow

    import_tensorflow()
    import qat_lib
    from qat_lib.files.output_files import check_output
    from qat_lib.keras.search import parse_drop
    from qatline.components.training.task_metric import TaskMetric
    from qatline.pipelines.cli import model_views
    from qatline.pipelines.cli.build_progress import build_progress

    read = [model, data, *filter(None, (spec, labels, calibration))]
    for written in filter(None, (output, journal)):
        check_output(written, inputs=read)
    # Before the model is loaded: a wrong bound fails at once.
    bound = parse_drop(max_drop)
    network = qat_lib.load_model(model)
    with tempfile.TemporaryDirectory(prefix="qatline-") as scratch:
        inputs, truth = _read(network, data, labels, Path(scratch), samples)
    quality = None
    if truth is not None and metric in (None, "accuracy"):
        quality = TaskMetric.of(network, inputs, truth, task)
        truth = quality.targets
    ranges = None
    if calibration is not None:
        ranges = model_views.read_inputs(calibration)
        check_inputs(network, ranges, calibration)
    with build_progress() as on_progress:
        found = qat_lib.search(
            network,
            inputs,
            truth,
            max_drop=bound,
            calibration=ranges,
            metric=metric or quality,
            objective=objective,
            recipe=qat_lib.PtqRecipe(calibrator=calibrator, backend=backend, cpu=cpu),
            spec=None if spec is None else qat_lib.QuantizationSpec.load(spec),
            backend=backend if engines else None,
            batch_size=batch_size,
            seconds=seconds,
            evaluations=evaluations,
            journal=journal or default_journal(model, "search"),
            on_progress=on_progress,
        )
    if output is not None and found.found:
        check_output(output)
        found.save(output)
    if json_:
        print_json(found.to_dict())
    else:
        _show(found, model, output)
    if not found.found:
        raise typer.Exit(1)


def _read(
    network: Any, data: Path, labels: Path | None, scratch: Path, samples: int
) -> tuple[Any, Any]:
    """Return inputs in float32, and targets as read where there are any.

    Raises:
        ConfigError: The model has several inputs.
        DataError: The data does not fit the model.
    """
    import numpy as np

    from qatline.components.data.labelled import TEST_PAIRS, read_labelled
    from qatline.pipelines.cli import model_views

    if data.suffix == ".npy" and labels is None:
        inputs, targets = model_views.read_inputs(data), None
    else:
        part = read_labelled(data, labels, scratch, TEST_PAIRS)
        inputs, targets = part.x, part.targets[:samples]
    check_inputs(network, inputs, data)
    if isinstance(inputs, Mapping):
        raise ConfigError(f"Expected a model with one input. {network.name} has {len(inputs)}.")
    return inputs[:samples].astype("float32"), None if targets is None else np.array(targets)


def _show(found: PlacementResult, model: Path, output: Path | None) -> None:
    typer.echo(str(found))
    if not found.found:
        return
    if output is None:
        typer.echo(found.spec.to_yaml().rstrip() if len(found.spec) else "No entry is needed.")
        return
    typer.echo(f"Wrote {output}. To quantize with it:")
    typer.echo(f"  qatline quantize {model} --spec {output} --data X.npy -o Q.keras")
