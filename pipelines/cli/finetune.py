"""``qatline finetune``: quantization-aware training of one quantized Keras file."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qatline.pipelines.cli.data_files import check_inputs
from qatline.pipelines.cli.derived_options import with_finetuning_options
from qatline.pipelines.cli.options import (
    JsonOption,
    LabelsOption,
    TaskOption,
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
    task: TaskOption = None,
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
        parts = _read(network, data, labels, task, Path(scratch), seed)
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


def _read(
    network: Any, data: Path, labels: Path | None, task: str | None, scratch: Path, seed: int
) -> ArrayData:
    """Return the data, checked against the model.

    Raises:
        ConfigError: The task does not exist.
        DataError: The data does not fit the model.
        UnsupportedModelError: The model is not quantized, or does not fit the task.
    """
    import qat_lib
    from qat_lib.errors import UnsupportedModelError
    from qatline.components.data.labelled import read_training
    from qatline.components.tasks import task_of_model
    from qatline.components.training.array_data import ArrayData
    from qatline.components.training.model_source import output_shapes

    if not qat_lib.model_quantizers(network):
        raise UnsupportedModelError(
            f"Expected a quantized model. {network.name} has no quantizers: run qatline quantize "
            "with --data first."
        )
    training, validating = read_training(data, labels, scratch, seed=seed)
    shapes, parts = output_shapes(network), []
    for part in (training, validating):
        check_inputs(network, part.x, data)
        found, targets = task_of_model(
            shapes, part.targets, str(network.name), task, inputs=part.input_shape
        )
        parts.append(replace(part, targets=targets))
        task = found.data.task  # not derived again: the validation part may lack a class
    return ArrayData(training=parts[0], validating=parts[1], task=found)


def _check_augment(settings: QATSettings, parts: ArrayData) -> None:
    from qat_lib.errors import DataError

    shape = parts.training.input_shape
    if settings.augment not in (None, "none") and (not isinstance(shape, tuple) or len(shape) != 3):
        raise DataError(
            f"--augment {settings.augment} moves images (height, width, channels). Received inputs "
            f"of shape {shape}: leave it out."
        )


class Bars:
    """Shows the progress of a training as a bar on the terminal.

    Args:
        update: called with the phase, the steps done and all steps.
    """

    def __init__(self, update: Callable[[str, int, int], None]) -> None:
        self._update = update

    def update(self, phase: str, current: int, total: int, **_metrics: float) -> None:
        self._update(phase, current, total)

    def warn(self, message: str) -> None:
        typer.echo(f"Warning: {message}", err=True)


def _with_progress(work: Callable[[Bars], Any]) -> Any:
    from qatline.pipelines.cli.build_progress import build_progress

    with build_progress() as update:
        return work(Bars(update))
