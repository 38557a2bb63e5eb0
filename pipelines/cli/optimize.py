"""``qatline optimize``: from one model to a checked INT8 engine."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qatline.pipelines.cli.data_files import check_inputs, first_inputs
from qatline.pipelines.cli.options import (
    BackendOption,
    CpuOption,
    JsonOption,
    LabelsOption,
    SpecOption,
    TaskOption,
    print_json,
)

if TYPE_CHECKING:
    from qatline.components.data.labelled import Labelled
    from qatline.components.training.task_metric import TaskMetric


def optimize_file(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="Keras file in floating point, or module:function (Keras, PyTorch).",
        ),
    ],
    data: Annotated[
        Path,
        typer.Option(
            help=".npz of x_train, y_train, x_test, y_test (or x, y), or .npy or .npz of inputs, as "
            "the model takes them."
        ),
    ],
    output: Annotated[Path, typer.Option("--output-dir", "-o", help="Folder to write.")],
    labels: LabelsOption = None,
    task: TaskOption = None,
    max_drop: Annotated[
        str | None,
        typer.Option(
            help="Largest accepted drop of the metric, such as 0.5%: beyond it, layers stay in "
            "float, then the model is trained.",
            show_default="any",
        ),
    ] = None,
    samples: Annotated[
        int, typer.Option(min=1, help="Samples to calibrate on, from the start.")
    ] = 512,
    backend: BackendOption = "auto",
    cpu: CpuOption = "auto",
    spec: SpecOption = None,
    classes: Annotated[
        str | None,
        typer.Option(help="Class names, as a,b,c, recorded in the engine.", show_default=False),
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=0.01, max=3600, help="Seconds to measure each engine.")
    ] = 2.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the training.")] = 0,
    json_: JsonOption = False,
) -> None:
    """Build a checked INT8 engine of a model, and compare it with the float engine.

    Ends with exit code 1 where the float engine is the better choice.
    """
    # First: without Keras it names the package to install.
    network = _open(model)
    from qat_lib import PtqRecipe, QuantizationSpec, optimize
    from qat_lib.files.output_files import check_output
    from qat_lib.optimization.metrics import parse_drop
    from qatline.pipelines.cli import model_views
    from qatline.pipelines.cli.build_progress import build_progress

    bound = None if max_drop is None else parse_drop(max_drop)
    if data.is_file():
        check_output(output / "model.onnx", inputs=[data])
    with tempfile.TemporaryDirectory(prefix="qatline-") as scratch:
        parts = _read(network, data, labels, task, Path(scratch), seed)
        with build_progress() as on_progress:
            found = optimize(
                network,
                first_inputs(parts.calibration, samples),
                output,
                test_data=parts.test,
                metric=parts.metric,
                max_drop=bound,
                train=_training(network, parts, seed, on_progress),
                recipe=PtqRecipe(backend=backend, cpu=cpu),
                spec=None if spec is None else QuantizationSpec.load(spec),
                classes=[] if classes is None else classes.split(","),
                seconds=seconds,
                on_progress=on_progress,
            )
    if json_:
        print_json(found.to_dict())
    else:
        model_views.show_optimized(found)
    if found.reason:
        raise typer.Exit(1)


@dataclass(frozen=True, kw_only=True)
class _Parts:
    """Samples for calibration, measurement and training.

    Attributes:
        calibration: inputs, an array or several by name.
        test: inputs to measure on.
        metric: the task's primary metric on them; None without targets.
        training: training and validation samples; None where the file has no test samples of its
            own.
    """

    calibration: Any
    test: Any
    metric: TaskMetric | None = None
    training: tuple[Labelled, Labelled] | None = None


def _open(name: str) -> Any:
    """Return a Keras model or a PyTorch module.

    Raises:
        ConfigError: The name is neither a Keras file nor a function, or the function fails.
        UnsupportedModelError: The file can't be loaded safely.
    """
    from qatline.pipelines.cli.quiet_import import import_tensorflow

    if ":" not in name:
        import_tensorflow()
        import qat_lib

        return qat_lib.load_model(Path(name))
    from qatline.components.support.user_code import call_with, find_user_modules, import_callable

    find_user_modules()
    return call_with("MODEL", name, import_callable("MODEL", name), {}, {})


def _read(
    network: Any, data: Path, labels: Path | None, task: str | None, scratch: Path, seed: int
) -> _Parts:
    from qatline.components.data.labelled import read_parts, read_training
    from qatline.components.data.npz_source import PAIRS, holds_pairs
    from qatline.components.training.task_metric import TaskMetric
    from qatline.pipelines.cli import model_views

    # Without targets the engine is compared with the model, on the calibration inputs.
    is_pair = labels is not None or (data.suffix == ".npz" and holds_pairs(data))
    if not is_pair:
        inputs = model_views.read_inputs(data)
        _check(network, inputs, data)
        return _Parts(calibration=inputs, test=inputs)
    wanted = {name: PAIRS[name] for name in ("train", "test")}
    parts = read_parts(data, labels, scratch, wanted)
    test, training = parts.get("test", parts["train"]), None
    for part in parts.values():
        _check(network, part.x, data)
    metric = TaskMetric.of(network, test.x, test.targets, task)
    # Fine-tuning needs targets apart from those that judge it.
    if "test" in parts:
        again = scratch / "training"
        again.mkdir()
        training = read_training(data, labels, again, seed=seed)
    return _Parts(calibration=parts["train"].x, test=test.x, metric=metric, training=training)


def _training(
    network: Any, parts: _Parts, seed: int, on_progress: Callable[[str, int, int], None]
) -> Callable[[Any], None] | None:
    """Return a function that fine-tunes a quantized Keras model with the defaults."""
    from qat_lib.graph.reading import is_module

    training, metric = parts.training, parts.metric
    if training is None or metric is None or is_module(network):
        return None

    def train(quantized: Any) -> None:
        from qatline.components.settings import QATSettings
        from qatline.components.training.array_data import ArrayData
        from qatline.components.training.finetuning import finetune
        from qatline.pipelines.cli.finetune import Bars

        first, second = (
            replace(part, targets=metric.task.check_targets(part.targets, "targets"))
            for part in training
        )
        arrays = ArrayData(training=first, validating=second, task=metric.task)
        finetune(
            quantized, arrays, QATSettings(), seed=seed, progress=Bars(on_progress), teacher=network
        )

    return train


def _check(network: Any, inputs: Any, data: Path) -> None:
    from qat_lib.graph.reading import is_module

    if not is_module(network):  # a module does not state its inputs
        check_inputs(network, inputs, data)
