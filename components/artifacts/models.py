"""Output of the steps with models: baseline, calibrated and fine-tuned model."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import AliasChoices, ConfigDict, Field

from qat_lib.errors import DataError, PlanError
from qat_lib.options import Framework
from qatline.components.artifacts.folder import StepFolder
from qatline.components.artifacts.record import Measured, Record, Text

if TYPE_CHECKING:
    import numpy as np

    from qat_lib.core.plan import QuantizationPlan

    Outputs = np.ndarray | Mapping[str, np.ndarray]

TEST, VALIDATION = "test", "validation"
# Samples of predictions that are checked at once.
_ROWS = 1 << 10


class LayerCost(Record):
    """Effect on the outputs of quantizing a single layer, separately for weights and inputs.

    ``cause`` is the cause, if one was found.
    """

    layer: Text = ""
    weights: Measured = None
    inputs: Measured = None
    cause: Text = ""


class LayerCosts(Record):
    """The short form of a diagnosis; see ``qat_lib.Diagnosis``."""

    measure: Text = ""
    total: Measured = None
    samples: Measured = None
    layers: Sequence[LayerCost] = ()


def measured_metrics(metric: str, *, test: float, validation: float) -> dict[str, float]:
    """Return a model's values of a metric by part, such as ``test_accuracy``."""
    return {f"{TEST}_{metric}": test, f"{VALIDATION}_{metric}": validation}


class Epoch(Record):
    """One epoch of a training.

    The primary metric of the task is stored under its own name: ``accuracy`` on the training part,
    where it is measured, and ``val_accuracy`` on the validation part; ``mae`` and ``val_mae``.

    Attributes:
        gain: decrease of the validation loss relative to the initial model.
        gain_bound: bound of an insignificant gain, at 5 %; larger gains are significant.
        images_per_second_per_worker: speed of each of several workers; absent for one.
        kept: 1 if the final weights are those of this epoch, else 0; absent if the last epoch is
            always kept.
    """

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Measured] = Field(init=False)

    epoch: int | float = 0
    loss: Measured = None
    val_loss: Measured = None
    lr: Measured = None
    seconds: Measured = None
    images_per_second_per_worker: Measured = None
    gain: Measured = None
    gain_bound: Measured = None
    kept: Measured = None

    def training(self, metric: str) -> float | None:
        """Return a metric of the training part, such as ``loss``; None if not measured."""
        return getattr(self, metric, None)

    def validation(self, metric: str) -> float | None:
        """Return a metric of the validation part; None if not measured."""
        return getattr(self, f"val_{metric}", None)


class ModelInfo(Record):
    """Description of the baseline.

    Attributes:
        source: the setting with its name.
        augment: augmentation of the training: a name, also with options; None for a model trained
            elsewhere.
        augment_code: digest of the user's code of the augmentation; empty for a built-in one.
    """

    name: str = ""
    source: str = ""
    framework: str = "keras"
    parameters: int | None = None
    input_shape: Sequence[int] | Mapping[str, Sequence[int]] = ()
    probabilities: bool | None = None
    trained_here: bool | None = None
    augment: str | dict[str, Any] | None = None
    augment_code: str = ""


class TorchRecipe(Record):
    """Builder of the float form of a PyTorch network.

    Attributes:
        name: a reference network, or ``module:function``.
        options: keyword arguments of the builder.
        inputs: shape of a sample of the only input, such as (height, width, channels), or of each
            of several by name.
        classes: number of classes.
        output_shape: shape of one sample's output.
        task: name of the task.
        code: digest of the user's code of the builder; empty for a reference network.
    """

    name: str
    options: dict[str, Any]
    inputs: tuple[int, ...] | dict[str, tuple[int, ...]] = Field(
        validation_alias=AliasChoices("inputs", "image_shape")
    )
    classes: int
    output_shape: tuple[int, ...] = ()
    task: str = "classification"
    code: str = ""


class RangeHistogram(Record):
    """Counts of absolute values, ``(bins,)``, between edges, ``(bins + 1,)``."""

    counts: Sequence[float]
    edges: Sequence[float]


class QuantizerRange(Record):
    """Range of a quantizer, with the calibration statistics of its tensor.

    Attributes:
        amax: one number, or one per channel.
        oscillating: share of a weight's elements that oscillated at the end of QAT, in [0, 1].
        held: share of elements frozen by QAT because of oscillation, in [0, 1].
    """

    tensor: str | None = None
    kind: str | None = None
    unsigned: bool = False
    amax: float | Sequence[float] | None = None
    observed_max: float | None = None
    method: str | None = None
    histogram: RangeHistogram | None = None
    oscillating: Measured = None
    held: Measured = None


class ModelFolder(StepFolder):
    """A model with the metrics of its step.

    A Keras model is one file. A PyTorch network consists of its state, its builder, and its plan if
    it is quantized.
    """

    MODELS: ClassVar[Mapping[Framework, str]] = {"keras": "model.keras", "torch": "model.pt"}
    RECIPE: ClassVar[str] = "network.json"
    METRICS: ClassVar[str] = "metrics.json"
    HISTORY: ClassVar[str] = "history.json"
    PREDICTIONS: ClassVar[str] = "predictions.npy"
    PLAN: ClassVar[str] = "plan.json"
    MODULES: ClassVar[str] = "modules.json"

    @property
    def framework(self) -> Framework:
        """Framework of the model; Keras if there is no model file."""
        for name, file in self.MODELS.items():
            if self.has(file):
                return name
        return "keras"

    @property
    def model_file(self) -> Path:
        """Path of the model."""
        return self.file(self.MODELS[self.framework])

    def recipe(self) -> TorchRecipe:
        """Return the builder of the float form of a PyTorch network."""
        return self.read(self.RECIPE, TorchRecipe)

    def write_recipe(self, recipe: TorchRecipe) -> None:
        """Write the builder of the float form of a PyTorch network."""
        self.write(self.RECIPE, recipe.to_dict())

    def modules(self) -> Mapping[str, str]:
        """Return the user's modules with classes of a Keras model, and the digests of their code."""
        return self.read(self.MODULES, dict[str, str]) if self.has(self.MODULES) else {}

    def write_modules(self, modules: Mapping[str, str]) -> None:
        """Write the user's modules with classes of a Keras model, if there are any."""
        if modules:
            self.write(self.MODULES, dict(modules), end="")

    def metrics(self) -> Mapping[str, float]:
        """Return the step's metrics by name; empty if there are none."""
        return self.read(self.METRICS, dict[str, float]) if self.has(self.METRICS) else {}

    def test_value(self, metric: str) -> float | None:
        """Return a metric of the test part; None if not measured."""
        return self.metrics().get(f"{TEST}_{metric}")

    def validation_value(self, metric: str) -> float | None:
        """Return a metric of the validation part; None if not measured."""
        return self.metrics().get(f"{VALIDATION}_{metric}")

    def write_metrics(self, metrics: Mapping[str, float]) -> None:
        """Write the step's metrics."""
        self.write(self.METRICS, dict(metrics), end="")

    def history(self) -> list[Epoch]:
        """Return the epochs of the training in order."""
        return self.read(self.HISTORY, list[Epoch])

    def write_history(self, history: Sequence[Epoch]) -> None:
        """Write the epochs of the training."""
        self.write(self.HISTORY, [epoch.to_dict() for epoch in history], end="")

    def predictions(self) -> Outputs:
        """Return the model's outputs on the test part, float32, memory-mapped.

        Returns:
            An array ``(samples, ...)``, or several by the output's name.

        Raises:
            DataError: they are missing, damaged or not finite.
        """
        import numpy as np

        path = self.file(self.PREDICTIONS)
        try:
            # A pickle from a downloaded run could execute code.
            values = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise DataError(
                f"The FP32 predictions {path} can't be read ({error}). Run {self.STEP} again."
            ) from error
        names = values.dtype.names
        outputs = {name: values[name] for name in names} if names else {"": values}
        for found in outputs.values():
            is_finite = found.ndim and found.dtype.kind == "f"
            for start in range(0, len(found) if is_finite else 0, _ROWS):
                is_finite = is_finite and bool(np.isfinite(found[start : start + _ROWS]).all())
            if not is_finite:
                raise DataError(
                    f"{path} must hold finite values of shape (samples, ...). Received: "
                    f"{found.dtype} {found.shape}."
                )
        arrays = {name: np.asarray(found, np.float32) for name, found in outputs.items()}
        return arrays if names else arrays[""]

    def write_predictions(self, batches: Iterable[Outputs], samples: int) -> None:
        """Write the model's outputs on the test part, batch by batch.

        Several outputs are the fields of one structured array.

        Args:
            batches: outputs of each batch, in order.
            samples: number of samples.
        """
        import numpy as np

        kind: Any = None
        # Written instead of memory-mapped: on a full disk, a memory map kills the process.
        with self.file(self.PREDICTIONS).open("wb") as stream:
            for batch in batches:
                outputs = batch if isinstance(batch, Mapping) else {"": batch}
                if kind is None:
                    fields = [(name, "<f4", each.shape[1:]) for name, each in outputs.items()]
                    several = isinstance(batch, Mapping)
                    kind = np.dtype(fields) if several else np.dtype("<f4")
                    header = {
                        "descr": np.lib.format.dtype_to_descr(kind),
                        "fortran_order": False,
                        "shape": (samples,) if several else (samples, *fields[0][2]),
                    }
                    np.lib.format.write_array_header_1_0(stream, header)
                if isinstance(batch, Mapping):
                    rows = np.empty(len(next(iter(batch.values()))), kind)
                    for name, values in batch.items():
                        rows[name] = values
                else:
                    rows = np.ascontiguousarray(batch, "<f4")
                stream.write(rows.tobytes())

    def plan(self) -> QuantizationPlan | None:
        """Return the plan of a quantized model; None for FP32."""
        return open_plan(self, self.PLAN) if self.has(self.PLAN) else None


class Baseline(ModelFolder):
    """The FP32 model, trained by the pipeline or elsewhere."""

    STEP: ClassVar[str] = "train_baseline"
    INFO: ClassVar[str] = "model.json"
    INFO_TAGS: ClassVar[tuple[str, ...]] = tuple(
        name for name in ModelInfo.model_fields if name != "probabilities"
    )

    def info(self) -> ModelInfo:
        """Return the description of the model."""
        return self.read(self.INFO, ModelInfo)

    def write_info(self, info: ModelInfo) -> None:
        """Write the description of the model."""
        self.write(self.INFO, info.to_dict(), end="")


class Quantized(ModelFolder):
    """The calibrated model."""

    STEP: ClassVar[str] = "quantize_model"
    SPEC: ClassVar[str] = "spec.json"
    RANGES: ClassVar[str] = "ranges.json"
    COSTS: ClassVar[str] = "layer_costs.json"

    def costs(self) -> LayerCosts:
        """Return the INT8 cost of each diagnosed layer."""
        return self.read(self.COSTS, LayerCosts)

    def write_costs(self, costs: LayerCosts) -> None:
        """Write the INT8 cost of each diagnosed layer."""
        self.write(self.COSTS, costs.to_dict(), end="")

    def write_plan(self, plan: QuantizationPlan) -> None:
        """Write the quantization plan of the model."""
        self.file(self.PLAN).write_text(plan.to_json(), encoding="utf-8")

    def copy_plan(self, folder: StepFolder) -> None:
        """Copy the plan into the directory of a later step."""
        shutil.copyfile(self.file(self.PLAN), folder.file(self.PLAN))

    def write_spec(self, entries: Sequence[Mapping[str, Any]]) -> None:
        """Write the entries of the plan's spec."""
        self.write(self.SPEC, list(entries), end="")

    def ranges(self) -> dict[str, QuantizerRange]:
        """Return the range of each quantizer by name."""
        return self.read(self.RANGES, dict[str, QuantizerRange])

    def write_ranges(self, ranges: Mapping[str, QuantizerRange]) -> None:
        """Write the range of each quantizer."""
        content = {name: found.to_dict() for name, found in ranges.items()}
        self.write(self.RANGES, content, indent=None, end="")


class FineTuned(Quantized):
    """The model after quantization-aware fine-tuning."""

    STEP: ClassVar[str] = "finetune_qat"
    CONTROL: ClassVar[str] = "control"
    CONTROL_HISTORY: ClassVar[str] = f"{CONTROL}/{ModelFolder.HISTORY}"
    CONTROL_METRICS: ClassVar[str] = f"{CONTROL}/{ModelFolder.METRICS}"

    def control(self) -> Control:
        """Return the folder of the FP32 control (same training); it may be missing."""
        return Control(self.file(self.CONTROL))


class Control(ModelFolder):
    """The FP32 model after the same additional training as in QAT."""

    STEP: ClassVar[str] = "finetune_qat"


def open_plan(folder: StepFolder, name: str) -> QuantizationPlan:
    """Return the plan in a step's directory.

    Raises:
        StepError: the plan is missing or damaged.
    """
    from qat_lib.core.plan import QuantizationPlan

    try:
        return QuantizationPlan.load(folder.file(name))
    except PlanError as error:
        raise folder.damaged(name, str(error).removesuffix(".")) from error
