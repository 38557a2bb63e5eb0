"""Keras, as the steps use it; see ``qatline.components.training.framework``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

import qat_lib
import qat_lib.keras.correction
from qatline.components.artifacts.layer_costs import LayerCost, LayerCosts
from qatline.components.artifacts.models import Epoch, ModelFolder
from qatline.components.settings import ModelSettings, QATSettings, TrainingSettings
from qatline.components.support.frameworks import FRAMEWORKS
from qatline.components.training import fitting, model_source
from qatline.components.training.framework import Framework, TrainingData

if TYPE_CHECKING:
    from qat_lib.core.plan import QuantizationPlan
    from qat_lib.core.spec import QuantizationSpec
    from qat_lib.export.options import ExportOptions
    from qat_lib.options import Cpu

_DIAGNOSED = 16
"""Samples on which the costs of layers are measured."""


class KerasFramework:
    """Keras on TensorFlow; a model is a ``keras.Model``."""

    traits = FRAMEWORKS["keras"]
    layer_check = "qatline export model.keras -o x.onnx --check inputs.npy --layers"

    def make_deterministic(self, seed: int) -> None:
        """Seed Python, NumPy and TensorFlow."""
        fitting.make_deterministic(seed)

    def open_model(
        self, settings: ModelSettings, image_shape: tuple[int, int, int], classes: int
    ) -> tuple[Any, bool]:
        """Return the model that ``settings`` name, and whether it is trained already."""
        return model_source.open_model(settings, image_shape, classes)

    def name(self, model: Any) -> str:
        """Return the model's name."""
        return str(model.name)

    def parameters(self, model: Any) -> int:
        """Return the number of its weights, trained or not."""
        return int(model.count_params())

    def gives_probabilities(self, model: Any) -> bool:
        """Whether its last layer is a softmax."""
        return model_source.gives_probabilities(model)

    def fit(
        self,
        model: Any,
        data: Path | TrainingData,
        schedule: TrainingSettings | QATSettings,
        **options: Any,
    ) -> list[Epoch]:
        """Train a model in place."""
        return fitting.fit(model, data, schedule, **options)

    def predict(self, model: Any, batches: Iterable[np.ndarray]) -> np.ndarray:
        """Return the outputs of inference."""
        return fitting.predict(model, batches)

    def plan(
        self,
        model: Any,
        mode: Any,
        spec: QuantizationSpec | None,
        cases: Sequence[Any],
        *,
        unsigned: bool,
        cpu: Cpu | None = None,
    ) -> QuantizationPlan:
        """Decide which tensors get a quantizer."""
        return qat_lib.plan_quantization(model, mode, spec, cases, unsigned=unsigned, cpu=cpu)

    def apply(self, model: Any, plan: QuantizationPlan) -> Any:
        """Return a quantized copy of a model."""
        return qat_lib.apply_plan(model, plan)

    def calibrate(
        self,
        model: Any,
        batches: Iterable[tuple[np.ndarray, Any]],
        method: str,
        *,
        percentile: float,
        freeze: bool,
        on_batch: Callable[[int], None],
    ) -> Any:
        """Set the ranges of a quantized model."""
        return qat_lib.calibrate(
            model, batches, method, percentile=percentile, freeze=freeze, on_batch=on_batch
        )

    def diagnose(
        self, model: Any, batches: Iterable[tuple[np.ndarray, Any]], layers: int
    ) -> LayerCosts:
        """Return what the noisiest layers of a quantized model cost."""
        found = qat_lib.diagnose(model, batches, samples=_DIAGNOSED, layers=layers)
        causes: dict[str, str] = {}
        for finding in found.findings:
            for reader in () if finding.minor else finding.change:
                causes.setdefault(reader.name, f"{finding.cause} of {finding.layer}")
        rows = []
        for row in found.layers:
            rows.append(
                LayerCost(
                    layer=row.layer,
                    weights=None if row.weights is None else row.weights.only,
                    inputs=None if row.inputs is None else row.inputs.only,
                    cause=causes.get(row.layer, ""),
                )
            )
        return LayerCosts(
            measure=found.measure, total=found.total, samples=found.samples, layers=rows
        )

    def equalize(
        self,
        model: Any,
        setting: Literal["auto"] | bool,
        batches: Iterable[tuple[np.ndarray, Any]],
        quantize: Callable[[Any, Any], Any],
    ) -> tuple[Any, bool]:
        """Return a float model, equalized if asked for or better, and whether it is."""
        choice = qat_lib.keras.correction.choose_equalization(model, batches, setting, quantize)
        return choice.model, choice.applied

    def correct_bias(
        self,
        model: Any,
        batches: Iterable[tuple[np.ndarray, Any]],
        *,
        on_layer: Callable[[int, int], None],
    ) -> int:
        """Correct the biases of a quantized model."""
        return len(qat_lib.correct_bias(model, batches, on_layer=on_layer).shifts)

    def adaround(
        self,
        model: Any,
        batches: Iterable[tuple[np.ndarray, Any]],
        *,
        correct: bool,
        on_layer: Callable[[int, int], None],
    ) -> tuple[int, int]:
        """Round the weights of a quantized model by its outputs."""
        report = qat_lib.adaround(model, batches, correct=correct, on_layer=on_layer)
        return len(report.errors), len(report.shifts)

    def quantizers(self, model: Any) -> Mapping[str, Any]:
        """Return the quantizers of a model by name."""
        return qat_lib.model_quantizers(model)

    def save(self, model: Any, folder: ModelFolder) -> None:
        """Write ``model.keras``."""
        model.save(folder.file(folder.MODELS["keras"]))

    def load(self, folder: ModelFolder) -> Any:
        """Return the model of ``model.keras``, loaded in safe mode."""
        return qat_lib.load_model(folder.model_file)

    def export_onnx(
        self, model: Any, path: Path, *, options: ExportOptions, signed: bool, **about: Any
    ) -> Any:
        """Export a model."""
        if signed:
            for quantizer in qat_lib.model_quantizers(model).values():
                quantizer.unsigned = False
        return qat_lib.export_onnx(model, path, options=options, **about)

    def check_parity(self, model: Any, path: Path, images: np.ndarray) -> Any:
        """Compare an exported file with its model."""
        return qat_lib.check_parity(model, path, images)


FRAMEWORK: Framework = KerasFramework()
