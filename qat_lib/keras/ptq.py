"""PtqRecipe: how a float model is quantized without training, in one value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from qat_lib.core.deployment import Deployment
from qat_lib.core.plan import QuantizationPlan
from qat_lib.core.spec import QuantizationSpec
from qat_lib.keras.apply.rebuild import apply_plan
from qat_lib.keras.calibration import CalibrationReport, calibrate
from qat_lib.keras.correction import EqualizationChoice, choose_equalization, correct_bias
from qat_lib.options import BackendChoice, CalibratorName, CpuChoice, Mode
from qat_lib.planner import plan_quantization


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
        equalize: whether channels are scaled to similar ranges first. Default ``"auto"``: where the
            model has depthwise convolutions and that lowers the error on the calibration data.
        bias_correction: whether the mean error is taken out of the biases. Default True.
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
    batch_size: int = 64

    @property
    def deployment(self) -> Deployment:
        """Where the engine will run, with ``"auto"`` resolved for this machine."""
        return Deployment.on(self.backend, self.cpu)

    def prepare(
        self, model: Any, data: Any, spec: QuantizationSpec | None = None
    ) -> EqualizationChoice:
        """Return the float model that is quantized: ``model``, or an equalized copy."""

        def quantize(candidate: Any, batches: Any) -> Any:
            quantized = apply_plan(candidate, self.plan(candidate, spec))
            self.finish(quantized, batches)
            return quantized

        return choose_equalization(
            model, data, self.equalize, quantize, batch_size=min(self.batch_size, 32)
        )

    def plan(self, model: Any, spec: QuantizationSpec | None = None) -> QuantizationPlan:
        """Return the plan of a float model under a spec."""
        place = self.deployment
        return plan_quantization(
            model, self.mode, spec, self.cases, unsigned=place.unsigned, cpu=place.cpu
        )

    def quantize(self, model: Any, data: Any, spec: QuantizationSpec | None = None) -> Any:
        """Return a quantized, calibrated and corrected copy of a float model.

        Args:
            model: a Functional or Sequential Keras model; it is not changed.
            data: calibration data in any form that ``calibrate`` takes.
            spec: which layers to treat differently from the default.

        Raises:
            SpecError, UnsupportedModelError: see ``qat_lib.quantize_model``.
            CalibrationError: see ``qat_lib.calibrate``.
        """
        prepared = self.prepare(model, data, spec).model
        quantized = apply_plan(prepared, self.plan(prepared, spec))
        self.finish(quantized, data)
        return quantized

    def finish(self, quantized: Any, data: Any) -> CalibrationReport:
        """Calibrate a quantized model and correct its biases, in place."""
        report = calibrate(
            quantized,
            data,
            self.calibrator,
            percentile=self.percentile,
            batch_size=self.batch_size,
            freeze=True,
        )
        if self.bias_correction:
            correct_bias(quantized, data, batch_size=self.batch_size)
        return report
