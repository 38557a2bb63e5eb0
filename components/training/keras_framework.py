"""Keras front end of the steps; see ``qatline.components.training.framework``."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import qat_lib
from qat_lib.models.weights import load_weights
from qatline.components.artifacts.models import Epoch, ModelFolder
from qatline.components.settings import ModelSettings, QATSettings, TrainingSettings
from qatline.components.support.frameworks import FRAMEWORKS
from qatline.components.support.user_code import import_modules
from qatline.components.tasks.task import Outputs, Task
from qatline.components.training import fitting, model_source
from qatline.components.training.framework import Framework, Shapes, TrainingData

if TYPE_CHECKING:
    from qat_lib.export.options import ExportOptions


class KerasFramework:
    """Keras on TensorFlow; a model is a ``keras.Model``."""

    traits = FRAMEWORKS["keras"]
    layer_check = "qatline export model.keras -o x.onnx --check inputs.npy --layers"

    def make_deterministic(self, seed: int) -> None:
        """Seed Python, NumPy and TensorFlow."""
        fitting.make_deterministic(seed)

    def build_model(self, settings: ModelSettings, shapes: Shapes, task: Task) -> Any:
        """Return the model selected by ``settings``, without weights."""
        return model_source.build_model(settings, shapes, task)

    def load_weights(self, model: Any, path: str) -> None:
        """Load a ``.weights.h5`` or ``.npz`` file."""
        load_weights(model, path)

    def open_model(self, settings: ModelSettings, shapes: Shapes, task: Task) -> tuple[Any, bool]:
        """Return the model selected by ``settings``, and whether it is already trained."""
        return model_source.open_model(settings, shapes, task)

    def check_model(self, model: Any, shapes: Shapes, task: Task) -> None:
        """Check that a model takes such inputs and fits the task."""
        model_source.check_model(model, shapes, task)

    def name(self, model: Any) -> str:
        """Return the model's name."""
        return str(model.name)

    def parameters(self, model: Any) -> int:
        """Return the number of its weights, trainable or not."""
        return int(model.count_params())

    def last_activation(self, model: Any) -> str:
        """Return the last activation."""
        return model_source.last_activation(model)

    def fit(
        self,
        model: Any,
        data: Path | TrainingData,
        schedule: TrainingSettings | QATSettings,
        **options: Any,
    ) -> list[Epoch]:
        """Train a model in place."""
        return fitting.fit(model, data, schedule, **options)

    def predict(self, model: Any, batches: Iterable[Any]) -> Iterator[Outputs]:
        """Yield the inference outputs."""
        return fitting.predict(model, batches)

    def mean_loss(
        self, model: Any, task: Task, targets: Any, outputs: Outputs, label_smoothing: float
    ) -> float:
        """Return the mean loss of a batch's outputs."""
        loss = task.keras_loss(self.last_activation(model), label_smoothing)
        return float(fitting.TaskLoss(loss)(targets, outputs))

    def bare(self, model: Any) -> Any:
        """Return the model itself."""
        return model

    def inputs(
        self,
        model: Any,  # noqa: ARG002
        batches: Iterable[tuple[Any, Any]],
    ) -> Iterable[Any]:
        """Return the batches themselves."""
        return batches

    def with_bare(self, model: Any, bare: Any) -> Any:  # noqa: ARG002
        """Return the other model unchanged."""
        return bare

    def quantizers(self, model: Any) -> Mapping[str, Any]:
        """Return the quantizers of a model by name."""
        return qat_lib.model_quantizers(model)

    def save(self, model: Any, folder: ModelFolder) -> None:
        """Write ``model.keras``, and the names of the user's modules with its classes."""
        folder.write_modules(model_source.user_modules_of(model))
        model.save(folder.file(folder.MODELS["keras"]))

    def load(self, folder: ModelFolder) -> Any:
        """Return the model of ``model.keras``, loaded in safe mode."""
        import_modules(folder.modules(), f"The model {folder.model_file}")
        return qat_lib.load_model(folder.model_file)

    def export_onnx(
        self, model: Any, path: Path, *, options: ExportOptions, signed: bool, **about: Any
    ) -> Any:
        """Export a model."""
        if signed:
            for quantizer in qat_lib.model_quantizers(model).values():
                quantizer.unsigned = False
        return qat_lib.export_onnx(model, path, options=options, **about)

    def check_parity(self, model: Any, path: Path, inputs: Any) -> Any:
        """Compare an exported file with its model, batch by batch as given."""
        return qat_lib.check_parity(model, path, inputs, batch_size=sys.maxsize)


FRAMEWORK: Framework = KerasFramework()
