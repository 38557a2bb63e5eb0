"""PtqRecipe: how a float model is quantized without training, in one value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, Protocol, cast

from qat_lib.calibrators.calibration import CalibrationReport
from qat_lib.core.deployment import Deployment
from qat_lib.core.plan import QuantizationPlan
from qat_lib.core.spec import QuantizationSpec
from qat_lib.custom_qdq_cases import TensorRTQDQCase
from qat_lib.errors import ConfigError
from qat_lib.graph.reading import is_module
from qat_lib.lockstep.bias import BiasReport, EqualizationChoice
from qat_lib.options import BackendChoice, CalibratorName, CpuChoice, Mode, Rounding
from qat_lib.planner import plan_quantization

_SAMPLES_OF_CHOICE = 8
"""Samples of the bias correction of both models in the choice of equalization.

The final correction takes more: MobileNetV2's divergence from FP32 grows by a tenth with 13 instead
of 27 samples. With 6, the choice is the same as with 27."""


class FrontEnd(Protocol):
    """Functions of a framework: ``qat_lib.keras.front_end`` or ``qat_lib.torch.front_end``.

    ``prepare`` has the signature of ``qat_lib.keras.correction.choose_equalization``,
    ``export_like`` that of ``export_onnx`` with the arrays of one batch by input behind the path.
    ``input_names`` takes the model and its data. ``adaround`` and ``search`` are optional.
    """

    prepare: Callable[..., EqualizationChoice]
    apply_plan: Callable[[Any, QuantizationPlan], Any]
    calibrate: Callable[..., CalibrationReport]
    correct_bias: Callable[..., BiasReport]
    export_like: Callable[..., Any]
    input_names: Callable[[Any, Any], list[str]]


@dataclass(frozen=True, kw_only=True)
class PtqRecipe:
    """Post-training quantization as ``qatline quantize`` does it, with its defaults.

    Args:
        mode: ``"full"`` (default) or ``"partial"``.
        cases: custom Q/DQ cases; ``"auto"`` (default) is ``qat_lib.TensorRTQDQCase``.
        calibrator: method of quantizers without one of their own. Default: ``"auto"``, or
            ``"percentile"`` where a percentile is given.
        percentile: for ``"percentile"``, in (0, 100]. Default 99.99.
        backend: backend that will run the engine; the sign of its integers follows from it.
            Default ``"auto"``: the best one on this machine.
        cpu: kind of CPU that will run the engine. Default ``"auto"``: this machine's.
        equalize: whether channels are scaled to similar ranges first (Keras only). Default
            ``"auto"``: where the model has depthwise convolutions and that lowers the error on the
            calibration data.
        bias_correction: whether the mean error is taken out of the biases. Default True.
        rounding: ``"adaround"`` chooses the integers of weights by the outputs of their layers
            (Keras only). Default ``"nearest"``.
        unsigned: whether non-negative tensors get unsigned integers. Default None: where the
            backend computes with them.
        batch_size: size of the batches that an array is cut into. Default 64.

    Examples:
        >>> PtqRecipe(backend="tensorrt").deployment.unsigned
        False
    """

    mode: Mode = "full"
    cases: Sequence[Any] | Literal["auto"] | None = "auto"
    calibrator: CalibratorName | None = None
    percentile: float | None = None
    backend: BackendChoice = "auto"
    cpu: CpuChoice = "auto"
    equalize: Literal["auto"] | bool = "auto"
    bias_correction: bool = True
    rounding: Rounding = "nearest"
    unsigned: bool | None = None
    batch_size: int = 64

    @property
    def deployment(self) -> Deployment:
        """Where the engine will run, with ``"auto"`` resolved for this machine."""
        return Deployment.on(self.backend, self.cpu)

    def for_metric(self, metric: Any) -> PtqRecipe:
        """Return the recipe for models measured by a metric.

        A metric with a true ``float_outputs``, such as that of a detector, keeps output layers in
        float, unless the recipe has cases of its own.
        """
        if self.cases != "auto" or not getattr(metric, "float_outputs", False):
            return self
        return replace(self, cases=[TensorRTQDQCase(float_outputs=True)])

    def prepare(
        self, model: Any, data: Any, spec: QuantizationSpec | None = None
    ) -> EqualizationChoice:
        """Return the float model that is quantized: ``model``, or an equalized copy.

        Of a PyTorch module that is its traced form, with the shapes of its tensors.

        Raises:
            ConfigError: equalization is requested of a PyTorch module.
        """
        front_end = front_end_of(model)

        def quantize(candidate: Any, batches: Any) -> Any:
            quantized = self.apply(candidate, self.plan(candidate, spec))
            self.calibrate(quantized, batches)
            # Not AdaRound, which is slow. Bias correction in some networks reverses the choice.
            if self.bias_correction:
                front_end.correct_bias(quantized, batches, samples=_SAMPLES_OF_CHOICE)
            return quantized

        return front_end.prepare(
            model, data, self.equalize, quantize, batch_size=min(self.batch_size, 32)
        )

    def plan(self, model: Any, spec: QuantizationSpec | None = None) -> QuantizationPlan:
        """Return the plan of a float model under a spec."""
        place = self.deployment
        unsigned = place.unsigned if self.unsigned is None else self.unsigned
        return plan_quantization(
            model, self.mode, spec, self.cases, unsigned=unsigned, cpu=place.cpu
        )

    def quantize(self, model: Any, data: Any, spec: QuantizationSpec | None = None) -> Any:
        """Return a quantized, calibrated and corrected copy of a float model.

        Args:
            model: a Functional or Sequential Keras model, or a PyTorch module that torch.fx traces;
                it is not changed.
            data: calibration data in any form that ``calibrate`` takes.
            spec: which layers to treat differently from the default.

        Raises:
            SpecError, UnsupportedModelError: see ``qat_lib.quantize_model``.
            CalibrationError: see ``qat_lib.calibrate``.
            ConfigError: equalization or AdaRound is requested of a PyTorch module.
        """
        return self._quantized(self.prepare(model, data, spec).model, data, spec)

    def _quantized(self, model: Any, data: Any, spec: QuantizationSpec | None) -> Any:
        quantized = self.apply(model, self.plan(model, spec))
        self.finish(quantized, data)
        return quantized

    def apply(self, model: Any, plan: QuantizationPlan) -> Any:
        """Return a copy of a float model with the quantizers of a plan."""
        return front_end_of(model).apply_plan(model, plan)

    def finish(self, quantized: Any, data: Any) -> CalibrationReport:
        """Calibrate a quantized model and correct it, in place."""
        report = self.calibrate(quantized, data)
        self.correct(quantized, data)
        return report

    def calibrate(
        self,
        quantized: Any,
        data: Any,
        *,
        freeze: bool = True,
        on_batch: Callable[[int], None] | None = None,
    ) -> CalibrationReport:
        """Set the ranges of a quantized model; see ``qat_lib.calibrate``."""
        return front_end_of(quantized).calibrate(
            quantized,
            data,
            self.calibrator,
            percentile=self.percentile,
            batch_size=self.batch_size,
            freeze=freeze,
            on_batch=on_batch,
        )

    def correct(
        self,
        quantized: Any,
        data: Any,
        *,
        state: Path | None = None,
        on_layer: Callable[[int, int], None] | None = None,
    ) -> BiasReport:
        """Round weights and correct biases of a calibrated model, in place.

        Args:
            quantized: the model.
            data: calibration data in any form that ``calibrate`` takes.
            state: file of an interrupted rounding; see ``qat_lib.adaround``.
            on_layer: called with the number of layers done, and of all.

        Returns:
            The report of ``qat_lib.adaround`` or ``qat_lib.correct_bias``.
        """
        options: dict[str, Any] = {"batch_size": self.batch_size, "on_layer": on_layer}
        front_end = front_end_of(quantized)
        if self.rounding == "adaround":
            adaround = getattr(front_end, "adaround", None)
            if adaround is None:
                raise ConfigError(
                    "AdaRound supports Keras models only. Received: a PyTorch module. Set "
                    "rounding='nearest'."
                )
            options |= {"correct": self.bias_correction, "state": state}
            return cast(BiasReport, adaround(quantized, data, **options))
        if self.bias_correction:
            return front_end.correct_bias(quantized, data, **options)
        return BiasReport(samples=0)


def loaded_model(model: Any, data: Any) -> Any:
    """Return a PyTorch module as it is, or a Keras model with a graph of layers."""
    if is_module(model):
        return model
    return import_module("qat_lib.keras.loading").functional_model(model, data)


def front_end_of(model: Any) -> FrontEnd:
    """Return the front end of a model's framework."""
    side = "torch" if is_module(model) else "keras"
    return cast(FrontEnd, import_module(f"qat_lib.{side}.front_end"))
