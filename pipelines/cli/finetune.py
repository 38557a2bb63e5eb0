"""``qatline finetune``: quantization-aware training of one quantized Keras file."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qatline.pipelines.cli.data_files import check_inputs, check_labels_fit
from qatline.pipelines.cli.derived_options import with_finetuning_options
from qatline.pipelines.cli.options import (
    JsonOption,
    LabelsOption,
    TrainingDataOption,
    print_json,
)

if TYPE_CHECKING:
    from qatline.components.settings import QATSettings
    from qatline.components.training.array_data import ArrayData


@with_finetuning_options
def finetune_file(
    model: Annotated[
        Path,
        typer.Argument(metavar="MODEL.keras", help="Quantized model, from qatline quantize."),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Fine-tuned model to write.")],
    data: TrainingDataOption,
    labels: LabelsOption = None,
    options: Any = None,
    teacher: Annotated[
        Path | None,
        typer.Option(help="Model in floating point for distillation.", show_default=False),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything random.")] = 0,
    json_: JsonOption = False,
) -> None:
    """Fine-tune a quantized Keras model (QAT) and keep the best epoch."""
    from qatline.pipelines.cli.quiet_import import import_tensorflow

    import_tensorflow()
    import qat_lib
    from qatline.components.training import fitting
    from qatline.components.training.finetuning import final_epoch, finetune
    from qatline.pipelines.cli import model_views

    _check_files(model, output, [data, *filter(None, (labels, teacher))])
    chosen = options()
    if teacher is None:
        chosen["distillation"] = 0.0
    settings = _settings(**chosen)
    fitting.make_deterministic(seed)
    network = qat_lib.load_model(model)
    soft = None if teacher is None else qat_lib.load_model(teacher)
    with tempfile.TemporaryDirectory(prefix="qatline-") as scratch:
        parts = _read(network, data, labels, Path(scratch), seed)
        _check_augment(settings, parts)
        history = _with_progress(
            lambda progress: finetune(
                network, parts, settings, seed=seed, progress=progress, teacher=soft
            )
        )
    model_views.write_model(output, network)
    first, kept, metric = history[0], final_epoch(history), parts.task.primary
    content = {
        "path": str(output),
        "samples": parts.samples,
        "validation_samples": len(parts.validating.targets),
        "kept_epoch": kept.epoch,
        f"validation_{metric.name}": kept.validation(metric.name),
        f"validation_{metric.name}_before": first.validation(metric.name),
        "epochs": [epoch.to_dict() for epoch in history],
    }
    if json_:
        print_json(content)
    else:
        model_views.show_finetuning(output, history, kept, metric)


def _settings(**values: Any) -> QATSettings:
    """Return the settings of the training.

    Raises:
        ConfigError: A value is out of its range.
    """
    from pydantic import ValidationError

    from qat_lib.errors import ConfigError
    from qatline.components.settings import QATSettings
    from qatline.pipelines.config.errors import describe_problems

    try:
        return QATSettings(**values)
    except ValidationError as error:
        raise ConfigError(describe_problems(error, "options")) from error


def _check_files(model: Path, output: Path, read: list[Path]) -> None:
    from qat_lib.errors import ConfigError
    from qat_lib.files.output_files import check_output

    if output.suffix != ".keras":
        raise ConfigError(f"--output must end with .keras. Received: {output}.")
    check_output(output, inputs=[model, *read])


def _read(network: Any, data: Path, labels: Path | None, scratch: Path, seed: int) -> ArrayData:
    """Return the data, checked against the model.

    Raises:
        UnsupportedModelError: The model is not quantized, or no classifier.
        DataError: The data does not fit it.
    """
    import qat_lib
    from qat_lib.errors import UnsupportedModelError
    from qatline.components.data.labelled import read_training
    from qatline.components.support.other_tasks import OTHER_TASKS
    from qatline.components.tasks import task_for
    from qatline.components.training.array_data import ArrayData

    if not qat_lib.model_quantizers(network):
        raise UnsupportedModelError(
            f"Expected a quantized model. {network.name} has no quantizers: run qatline quantize "
            "with --data first."
        )
    shapes = [tuple(output.shape) for output in network.outputs]
    if len(shapes) != 1 or len(shapes[0]) != 2 or shapes[0][1] is None:
        raise UnsupportedModelError(
            f"Expected a model with one output (samples, classes). {network.name} gives "
            f"{', '.join(map(str, shapes))}. {OTHER_TASKS}"
        )
    training, validating = read_training(data, labels, scratch, seed=seed)
    for part in (training, validating):
        check_inputs(network, part.x, data)
        check_labels_fit(part, shapes[0][1], data)
    task = task_for("classification", classes=[str(index) for index in range(shapes[0][1])])
    return ArrayData(training=training, validating=validating, task=task)


def _check_augment(settings: QATSettings, parts: ArrayData) -> None:
    from qat_lib.errors import DataError

    if settings.augment not in (None, "none") and parts.training.x.ndim != 4:
        raise DataError(
            f"--augment {settings.augment} moves images (samples, height, width, channels). "
            f"Received {parts.training.x.ndim} dimensions: leave it out."
        )


class _Bars:
    """Shows the progress of a training as a bar on the terminal."""

    def __init__(self, update: Callable[[str, int, int], None]) -> None:
        self._update = update

    def update(self, phase: str, current: int, total: int, **_metrics: float) -> None:
        self._update(phase, current, total)

    def warn(self, message: str) -> None:
        typer.echo(f"Warning: {message}", err=True)


def _with_progress(work: Callable[[_Bars], Any]) -> Any:
    from qatline.pipelines.cli.build_progress import build_progress

    with build_progress() as update:
        return work(_Bars(update))
