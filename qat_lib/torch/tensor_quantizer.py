"""TensorQuantizer: fake quantization with the range of a tensor or tied group."""

from __future__ import annotations

from typing import Any

import torch

from qat_lib.calibrators.collecting import active_collector
from qat_lib.core.ranges import AMAX_FLOOR, INITIAL_AMAX, SHARED_FALL, range_shape
from qat_lib.errors import CalibrationError, ExportError, SpecError
from qat_lib.torch.calib import Calibrator, NothingCollectedError, create_calibrator
from qat_lib.torch.compat import Clip
from qat_lib.torch.export_mode import is_exporting, mark, write_pair, writes_pairs
from qat_lib.torch.fake_quantization import (
    FP8,
    fake_quantize,
    fake_quantize_fp8,
    quantization_scale,
)
from qat_lib.torch.range_state import RangeState
from qat_lib.torch.tensor_quant import (
    QUANT_DESC_8BIT_PER_TENSOR,
    QuantDescriptor,
    tensor_quant,
)


class TensorQuantizer(RangeState):
    """Fake-quantize a tensor and store its range.

    Without a range, the quantizer uses the range of each tensor. ``qat_lib.torch.calibrate``,
    ``load_calib_amax()``, an assignment to ``amax`` or, with the policies ``"ema"`` and ``"last"``,
    the first training step sets a range. Several tensors of one quantizer have one range; set
    ``shared`` to let a tracked range cover the widest tensor.

    Args:
        quant_desc: quantization settings. Default: 8 bits, one range.
        disabled: whether tensors pass unchanged. Default False.
        if_quant: whether to quantize. Default True.
        if_clip: whether to clip tensors to the trained range even without quantization, to learn
            the range first. Default False. The quantization with a trained range also clips and
            trains it.
        if_calib: whether the quantizer's calibrator collects. Default False.

    Raises:
        SpecError: ``if_clip`` is set without a trained range.

    Examples:
        >>> quantizer = TensorQuantizer(QuantDescriptor(amax=127.0))
        >>> quantizer(torch.tensor([-200.0, 0.4, 1.6]))
        tensor([-128.,    0.,    2.])
    """

    def __init__(
        self,
        quant_desc: QuantDescriptor = QUANT_DESC_8BIT_PER_TENSOR,
        disabled: bool = False,
        if_quant: bool = True,
        if_clip: bool = False,
        if_calib: bool = False,
    ) -> None:
        super().__init__()
        self.name = quant_desc.name or ""
        self.axis = quant_desc.axis
        self.num_bits = quant_desc.num_bits
        self.unsigned = quant_desc.unsigned
        self.narrow_range = quant_desc.narrow_range
        self.fake_quant = quant_desc.fake_quant
        self.scale_amax = quant_desc.scale_amax
        self.range_policy = str(quant_desc.range_policy)
        self.momentum = quant_desc.momentum
        self.calibrator = quant_desc.calibrator
        self.pair_axis = quant_desc.pair_axis
        self.shared = False
        self._disabled = disabled
        self._if_quant = if_quant
        self._if_calib = if_calib
        self._if_clip = False
        self._calibrator: Calibrator | None = create_calibrator(quant_desc)
        if quant_desc.amax is not None:
            self.amax = quant_desc.amax * (quant_desc.scale_amax or 1.0)
        elif self._learned and self.axis is None:
            self._set_range(torch.tensor(INITIAL_AMAX))
        if if_clip:
            self.enable_clip()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Quantize ``inputs``, times ``pre_quant_scale`` if set; shape and data type are kept."""
        if self._pre_quant_scale is not None:
            inputs = inputs * self._pre_quant_scale.to(inputs)
        # Before the check of _disabled: a collector gets the tensors of all quantizers.
        if (collector := active_collector()) is not None:
            collector.observe(self, inputs)
            return inputs
        if self._disabled:
            return inputs
        if is_exporting():
            return mark(inputs, self.name) if self._if_quant else inputs
        # An empty tensor has no range.
        if inputs.numel() == 0:
            return inputs
        if writes_pairs():
            return self._write_pair(inputs) if self._if_quant else inputs
        if self._if_calib:
            if self._calibrator is None:
                raise CalibrationError(f"The quantizer {self.name!r} has no calibrator.")
            self._calibrator.collect(inputs.detach())
        if self._if_clip:
            inputs = self.clip(inputs)
        return self._quantize(inputs) if self._if_quant else inputs

    def _write_pair(self, x: torch.Tensor) -> torch.Tensor:
        if not self.of_weight and self.amax is None:
            raise ExportError(
                f"Expected a range for the quantizer {self.name!r}. Received: none. Calibrate the "
                "model before the export."
            )
        axes = self.axes or ()
        if len(axes) > 1:
            raise ExportError(
                f"Expected one range or one axis, which ONNX has. Received: axis={self.axis!r} of the "
                f"quantizer {self.name!r}."
            )
        scale = quantization_scale(self._range_for(x), self.num_bits, self.unsigned)
        return write_pair(x, scale, axes[0] % x.dim() if axes else None, self._stored_type())

    def _stored_type(self) -> torch.dtype:
        if self.num_bits == FP8:
            return torch.float8_e4m3fn
        if self.num_bits != 8:
            raise ExportError(
                f"Expected 8 bits, which ONNX's QuantizeLinear has. Received: {self.num_bits} of the "
                f"quantizer {self.name!r}. qat_lib.torch.export_onnx stores weights of fewer bits."
            )
        return torch.uint8 if self.unsigned else torch.int8

    def _quantize(self, x: torch.Tensor) -> torch.Tensor:
        amax = self._range_for(x)
        if self.num_bits == FP8:
            return fake_quantize_fp8(x, amax)
        if not self.fake_quant:
            narrow = self.narrow_range
            return tensor_quant(x, amax, self.num_bits, self.unsigned, narrow)[0]
        return fake_quantize(
            x,
            amax,
            num_bits=self.num_bits,
            narrow_range=self.narrow_range,
            unsigned=self.unsigned,
            learned=self._learned,
        )

    def _range_for(self, x: torch.Tensor) -> torch.Tensor:
        """Return the range for ``x``, on its device."""
        if self.range_policy == "current":
            return self.range_of(x)
        if self._learned:
            if self._step is None:
                self._set_range(self.range_of(x).clamp(min=AMAX_FLOOR))
            return (self._step * self._high).to(x.device)
        if self.training and self._tracking and self.range_policy in ("ema", "last"):
            self._track(x)
        if self._amax is None:
            return self.range_of(x)
        # The range on the device of ``x``; a flat list of ranges gets its shape here.
        amax = self._amax
        if amax.device != x.device:
            self._amax = amax = amax.to(x.device)
        if self.axes is not None and amax.dim() != x.dim():
            shape = range_shape(x.shape, self.axes, self.name)
            single = amax.numel() == 1  # one range for every channel
            self._amax = amax = amax.expand(shape).clone() if single else amax.reshape(shape)
        return amax

    def _track(self, x: torch.Tensor) -> None:
        """Move the range towards that of the batch; the first batch sets an unset range."""
        seen = self.range_of(x)
        if self._amax is None or not self._is_set:
            if bool(torch.isfinite(seen).all()):
                self._amax, self._is_set = seen.clamp(min=AMAX_FLOOR), True
            return
        old = self._amax.to(x.device)
        keep: Any = self.momentum if self.range_policy == "ema" else 0.0
        if self.shared:
            slow = torch.tensor(1.0 - (1.0 - keep) / SHARED_FALL, device=x.device)
            # A shared range shrinks more slowly than it grows, so the widest tensor dominates.
            keep = torch.where(seen < old, slow, torch.tensor(keep, device=x.device))
        blended = (keep * old + (1.0 - keep) * seen).clamp(min=AMAX_FLOOR)
        # torch.where instead of an if: no synchronization with the GPU in each step.
        self._amax = torch.where(torch.isfinite(seen).all(), blended, old)

    @property
    def enabled(self) -> bool:
        """Whether the tensor is quantized; otherwise it passes unchanged."""
        return self._if_quant and not self._disabled

    def enable(self) -> None:
        """Enable the quantizer."""
        self._disabled = False

    def disable(self) -> None:
        """Disable the quantizer: tensors pass unchanged, and nothing is collected."""
        self._disabled = True

    def enable_quant(self) -> None:
        """Enable quantization."""
        self._if_quant = True

    def disable_quant(self) -> None:
        """Disable quantization; an enabled calibrator continues to collect."""
        self._if_quant = False

    def enable_calib(self) -> None:
        """Enable collection of tensors by the quantizer's calibrator."""
        self._if_calib = True

    def disable_calib(self) -> None:
        """Disable collection of tensors."""
        self._if_calib = False

    def enable_clip(self) -> None:
        """Enable clipping to the trained range.

        Raises:
            SpecError: the range is not trained.
        """
        if not self._learned:
            raise SpecError(
                f"Only a trained range clips. Received: the range policy {self.range_policy!r} of "
                f"the quantizer {self.name!r}. Use QuantDescriptor(learn_amax=True)."
            )
        self._if_clip = True

    def disable_clip(self) -> None:
        """Disable clipping; quantization with a trained range still clips."""
        self._if_clip = False

    @property
    def clip(self) -> Clip:
        """Module that clips to the current value of the trained range.

        Raises:
            AttributeError: the range is not trained, or not set yet.
        """
        if self._step is None:
            raise AttributeError(f"The quantizer {self.name!r} has no trained range to clip to.")
        amax = self._step * self._high
        return Clip(-amax, amax)

    def init_learn_amax(self) -> None:
        """Do nothing, for compatibility: ``load_calib_amax`` and ``amax`` set a trained range.

        Raises:
            SpecError: the range is not trained.
        """
        if not self._learned:
            raise SpecError(
                f"Only a quantizer with learn_amax=True has a range to initialize. Received: "
                f"the range policy {self.range_policy!r} of {self.name!r}."
            )

    @property
    def pre_quant_scale(self) -> torch.Tensor | None:
        """Factor on the tensor before its quantization, for SmoothQuant.

        The factor is a number or a tensor that broadcasts against the quantized tensor; None
        (default) omits it. It is also applied by a disabled quantizer, and saved with the model.

        Raises:
            SpecError: the factor is not finite, or this is a weight quantizer: scale the weight
                itself.
        """
        return self._pre_quant_scale

    @pre_quant_scale.setter
    def pre_quant_scale(self, value: Any) -> None:
        if value is None:
            self._pre_quant_scale = None
            return
        if self.of_weight:
            raise SpecError(
                f"{self.name!r} quantizes a weight: multiply the weight itself, and set "
                "pre_quant_scale of the input's quantizer."
            )
        factor = torch.as_tensor(value).detach().float().clone()
        if not bool(torch.isfinite(factor).all()):
            raise SpecError(f"pre_quant_scale must be finite. Received: {value!r}.")
        self._pre_quant_scale = factor

    def freeze(self) -> None:
        """Stop updates of the range (``"ema"`` and ``"last"``)."""
        self._tracking = False

    def unfreeze(self) -> None:
        """Resume updates of the range (``"ema"`` and ``"last"``)."""
        self._tracking = True

    @property
    def frozen(self) -> bool:
        """Whether the range is fixed during training."""
        return self.range_policy == "frozen" or not self._tracking

    @property
    def calibrated(self) -> bool:
        """Whether the range was set by calibration, training or assignment; true for weights."""
        return self.range_policy == "current" or self.of_weight or self._is_set

    @property
    def learn_amax(self) -> bool:
        """Whether the range is trained."""
        return self._learned

    @property
    def scale(self) -> torch.Tensor | None:
        """Scale, ``amax`` over the greatest integer; None without a range."""
        amax = self.amax
        return None if amax is None else quantization_scale(amax, self.num_bits, self.unsigned)

    step_size = scale

    def load_calib_amax(self, *args: Any, strict: bool = True, **kwargs: Any) -> None:
        """Set the range from the data of the quantizer's calibrator.

        Args:
            *args: arguments of the calibrator's ``compute_amax``, such as a histogram's method.
            strict: whether missing data are an error. Default True; otherwise the range is kept.
            **kwargs: arguments of the calibrator's ``compute_amax``, such as ``percentile``.

        Raises:
            CalibrationError: the quantizer has no calibrator, or its calibrator has no data.
        """
        if self._calibrator is None:
            raise CalibrationError(f"The quantizer {self.name!r} has no calibrator.")
        amax = self._calibrator.compute_amax(*args, **kwargs)
        if amax is None:
            if strict:
                raise NothingCollectedError(
                    f"Calibrator returned None: that of quantizer {self.name!r} collected no tensor. "
                    "Call the model after enable_calib(), or pass strict=False to keep the range as "
                    "it is."
                )
            return
        self.amax = amax * (self.scale_amax or 1.0)

    def extra_repr(self) -> str:
        """Return the settings and the range on one line."""
        if self._disabled:
            return "disabled"
        width = "FP8" if self.num_bits == FP8 else f"{self.num_bits}bit"
        words = ["unsigned "[: 9 * self.unsigned] + width]
        words += ["narrow"] * self.narrow_range + ["fake"] * self.fake_quant
        words.append("per-tensor" if self.axis is None else f"axis={self.axis}")
        words += [f"amax={self._short_amax()}", self.range_policy]
        words += ["pre_quant_scale"] * (self._pre_quant_scale is not None)
        words += ["quant"] * self._if_quant + ["clip"] * self._if_clip + ["calib"] * self._if_calib
        return " ".join(words)

    def _short_amax(self) -> str:
        amax = self.amax
        if amax is None:
            return "dynamic"
        if amax.numel() == 1:
            return f"{amax.item():.4f}"
        return f"[{amax.min().item():.4f}, {amax.max().item():.4f}]({amax.numel()})"
