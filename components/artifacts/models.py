"""Output of the steps with models: baseline, calibrated and fine-tuned model."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from qat_lib.errors import DataError, PlanError
from qat_lib.options import Framework
from qatline.components.artifacts.folder import StepFolder
from qatline.components.artifacts.layer_costs import LayerCosts
from qatline.components.artifacts.record import Measured, Record

if TYPE_CHECKING:
    import numpy as np

    from qat_lib.core.plan import QuantizationPlan


_TEST_ACCURACY = "test_accuracy"


def accuracies(*, test: float, validation: float) -> dict[str, float]:
    """Return a model's accuracies by name, in [0, 1]."""
    return {_TEST_ACCURACY: test, "validation_accuracy": validation}


class Epoch(Record):
    """One epoch of a training.

    Attributes:
        gain: decrease of the validation loss relative to the initial model.
        gain_bound: bound of an insignificant gain, at 5 %; larger gains are significant.
        images_per_second_per_worker: speed of each of several workers; absent for one.
        kept: 1 if the final weights are those of this epoch, else 0; absent if the last epoch is
            always kept.
    """

    epoch: int | float = 0
    accuracy: Measured = None
    loss: Measured = None
    val_loss: Measured = None
    val_accuracy: Measured = None
    lr: Measured = None
    seconds: Measured = None
    images_per_second_per_worker: Measured = None
    gain: Measured = None
    gain_bound: Measured = None
    kept: Measured = None


class ModelInfo(Record):
    """Description of the baseline.

    Attributes:
        source: the setting with its name.
        augment: augmentation of the training images; None for a model trained elsewhere.
    """

    name: str = ""
    source: str = ""
    framework: str = "keras"
    parameters: int | None = None
    input_shape: Sequence[int] = ()
    probabilities: bool | None = None
    trained_here: bool | None = None
    augment: str | None = None


class TorchRecipe(Record):
    """Builder of the float form of a PyTorch network.

    Attributes:
        name: a reference network, or ``module:function``.
        options: keyword arguments of the builder.
        image_shape: (height, width, channels) of the data.
        classes: number of outputs.
        code: digest of the user's code of the builder; empty for a reference network.
    """

    name: str
    options: dict[str, Any]
    image_shape: tuple[int, int, int]
    classes: int
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

    def metrics(self) -> Mapping[str, float]:
        """Return the step's metrics by name; empty if there are none."""
        return self.read(self.METRICS, dict[str, float]) if self.has(self.METRICS) else {}

    def test_accuracy(self) -> float | None:
        """Return the test accuracy in [0, 1]; None if not measured."""
        return self.metrics().get(_TEST_ACCURACY)

    def write_metrics(self, metrics: Mapping[str, float]) -> None:
        """Write the step's metrics."""
        self.write(self.METRICS, dict(metrics), end="")

    def history(self) -> list[Epoch]:
        """Return the epochs of the training in order."""
        return self.read(self.HISTORY, list[Epoch])

    def write_history(self, history: Sequence[Epoch]) -> None:
        """Write the epochs of the training."""
        self.write(self.HISTORY, [epoch.to_dict() for epoch in history], end="")

    def predictions(self) -> np.ndarray:
        """Return the model's outputs on the test part, float32 ``(samples, classes)``.

        Raises:
            DataError: they are missing, damaged, not finite, or have another shape.
        """
        import numpy as np

        path = self.file(self.PREDICTIONS)
        try:
            # A pickle from a downloaded run could execute code.
            values = np.load(path, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise DataError(
                f"The FP32 predictions {path} can't be read ({error}). Run {self.STEP} again."
            ) from error
        if values.ndim != 2 or not np.isfinite(values).all():
            raise DataError(
                f"{path} must hold finite values of shape (samples, classes). "
                f"Received: shape {values.shape}."
            )
        return np.asarray(values, np.float32)

    def write_predictions(self, outputs: np.ndarray) -> None:
        """Write the model's outputs on the test part."""
        import numpy as np

        np.save(self.file(self.PREDICTIONS), outputs.astype(np.float32))

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
