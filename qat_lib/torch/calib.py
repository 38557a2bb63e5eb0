"""Calibrators of single quantizers, with the names of pytorch-quantization.

``qat_lib.torch.calibrate`` calibrates a whole model in one call, without these.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import nn

from qat_lib.calibrators.histogram import BINS
from qat_lib.calibrators.methods import range_from_histogram
from qat_lib.core.ranges import reduced_axes
from qat_lib.errors import CalibrationError
from qat_lib.torch.histogram import Histogram
from qat_lib.torch.tensor_quant import QuantDescriptor


class NothingCollectedError(CalibrationError, RuntimeError):
    """A calibrator without data; a RuntimeError, as in pytorch-quantization."""


class ShapeChangedError(CalibrationError, RuntimeError):
    """Tensors of a calibrator with a different number of channels; also a RuntimeError."""


class Calibrator(Protocol):
    """Collector of the tensors of one quantizer."""

    def collect(self, x: torch.Tensor) -> None:
        """Collect a tensor."""

    def compute_amax(self, *args: Any, **kwargs: Any) -> torch.Tensor | None:
        """Return the range of the collected tensors; None without tensors."""

    def reset(self) -> None:
        """Discard the collected data."""


def create_calibrator(descriptor: QuantDescriptor) -> Calibrator:
    """Return the calibrator requested by a descriptor."""
    kind = HistogramCalibrator if descriptor.calib_method == "histogram" else MaxCalibrator
    return kind(descriptor.num_bits, descriptor.axes, descriptor.unsigned)


class MaxCalibrator:
    """Calibrator of the largest magnitude, per tensor or per channel.

    Args:
        num_bits: width of the integers, without effect on the range.
        axis: per-channel axes; None = one range.
        unsigned: whether the integers are unsigned.
        track_amax: whether to keep the range of each tensor in ``amaxs``. Default False.
    """

    def __init__(
        self,
        num_bits: Any = 8,
        axis: int | tuple[int, ...] | None = None,
        unsigned: bool = False,
        track_amax: bool = False,
    ) -> None:
        self.num_bits = num_bits
        self.axis = (axis,) if isinstance(axis, int) else axis
        self.unsigned = unsigned
        self.track_amax = track_amax
        self.reset()

    def reset(self) -> None:
        """Discard the collected data."""
        self.amaxs: list[Any] = []
        self._amax: torch.Tensor | None = None

    def collect(self, x: torch.Tensor) -> None:
        """Collect a tensor.

        Raises:
            ShapeChangedError: the sizes of the per-channel axes changed.
        """
        x = x.detach().float()
        magnitude = x.relu() if self.unsigned else x.abs()
        if self.axis is None:
            seen = magnitude.amax()
        else:
            axes = reduced_axes(x.dim(), self.axis)
            seen = magnitude.amax(axes, keepdim=True) if axes else magnitude
        if self._amax is None:
            self._amax = seen
        elif self._amax.shape != seen.shape:
            raise ShapeChangedError(
                f"The range's shape changed: expected {tuple(self._amax.shape)}, as of the tensors "
                f"before. Received: {tuple(seen.shape)}."
            )
        else:
            self._amax = torch.maximum(self._amax, seen)
        if self.track_amax:
            self.amaxs.append(seen.cpu().numpy())

    def compute_amax(self) -> torch.Tensor | None:
        """Return the largest magnitude; None without tensors."""
        return self._amax


class HistogramCalibrator:
    """Calibrator with a histogram of magnitudes and several calibration methods.

    Args:
        num_bits: width of the integers, or ``(4, 3)`` for FP8 with the methods ``"max"`` and
            ``"percentile"``.
        axis: must be None: a histogram has one range.
        unsigned: whether the integers are unsigned.
        num_bins: minimum number of bins over the data, at least 1, rounded up to a multiple of
            2048. Default 2048.
        grow_method: ignored: bins merge in pairs as the data grow.
        skip_zeros: whether to ignore zeros. Default False.
        torch_hist: ignored: tensors are counted on their device, with the same counts on each.

    Raises:
        CalibrationError: ``axis`` is given, or ``num_bins`` is less than 1.
    """

    def __init__(
        self,
        num_bits: Any = 8,
        axis: Any = None,
        unsigned: bool = False,
        num_bins: int = BINS // 2,
        grow_method: str | None = None,  # noqa: ARG002 - of pytorch-quantization, without effect
        skip_zeros: bool = False,
        torch_hist: bool = True,  # noqa: ARG002
    ) -> None:
        if axis is not None:
            raise CalibrationError(
                "A histogram gives one range: use calib_method='max' with an axis. Received: "
                f"axis={axis!r}."
            )
        if num_bins < 1:
            raise CalibrationError(f"Expected num_bins of at least 1. Received: {num_bins!r}.")
        self.num_bits = num_bits
        self.axis = axis
        self.unsigned = unsigned
        self.num_bins = num_bins
        self.skip_zeros = skip_zeros
        self.reset()

    def reset(self) -> None:
        """Discard the collected data."""
        # Twice num_bins: bins merge in pairs, and then only half of them span the data.
        self.histogram = Histogram(-(-2 * self.num_bins // BINS) * BINS)

    def collect(self, x: torch.Tensor) -> None:
        """Count the magnitudes of a tensor.

        Raises:
            CalibrationError: a value is not finite.
        """
        magnitude = x.detach().float()
        magnitude = magnitude.relu() if self.unsigned else magnitude.abs()
        if self.skip_zeros:
            magnitude = magnitude[magnitude != 0]
        if magnitude.numel() == 0:
            return
        largest = float(magnitude.amax())
        # Written so that NaN fails, too.
        if not largest < float("inf"):
            raise CalibrationError(
                "A tensor has NaN or infinite values. Check the calibration data and the model: "
                "its FP32 outputs must be finite."
            )
        self.histogram.add(magnitude, largest)

    def compute_amax(
        self, method: str = "percentile", *, percentile: float = 99.99
    ) -> torch.Tensor | None:
        """Return the range of a calibration method; None without tensors.

        Args:
            method: ``"max"``, ``"percentile"`` (default), ``"entropy"`` or ``"mse"``.
            percentile: in (0, 100]. Default 99.99.

        Raises:
            CalibrationError: the method is unknown or the percentile is out of range.
        """
        if not self.histogram.counts.any():
            return None
        return torch.tensor(
            range_from_histogram(
                self.histogram, method, percentile, self.num_bits, unsigned=self.unsigned
            )
        )


def calibrate_weights(
    model: nn.Module,
    method: str = "percentile",
    perchannel: bool = True,
    percentile: float = 99.99,
    num_bins: int = BINS // 2,
) -> None:
    """Set the weight ranges of quantized modules from histograms of the weights.

    ``qat_lib.torch.calibrate`` sets weight ranges to the largest magnitudes, the best choice for
    engines; use this function for the other methods.

    Args:
        model: a model with quantized modules. The ranges of its weight quantizers become fixed.
        method: ``"percentile"`` (default), ``"mse"``, ``"entropy"`` or ``"max"``.
        perchannel: whether each output channel has a separate range. Default True.
        percentile: for ``"percentile"``, in (0, 100]. Default 99.99.
        num_bins: see ``HistogramCalibrator``. Default 2048.

    Raises:
        CalibrationError: the model has no quantized module, the method is unknown, the percentile
            is out of range, or a weight is not finite.
    """
    found: list[tuple[Any, int | None, torch.Tensor]] = []
    for module in model.modules():
        quantizer, weight = (getattr(module, name, None) for name in ("weight_quantizer", "weight"))
        if quantizer is None or weight is None:
            continue
        # The weight of a transposed convolution is (in, out, ...).
        axis = 1 if getattr(module, "transposed", False) else 0
        channels = weight.detach().unbind(axis) if perchannel else (weight.detach(),)
        ranges = []
        for channel in channels:
            calibrator = HistogramCalibrator(
                quantizer.num_bits, None, quantizer.unsigned, num_bins=num_bins
            )
            calibrator.collect(channel)
            ranges.append(calibrator.compute_amax(method, percentile=percentile))
        shape = [len(ranges) if perchannel and i == axis else 1 for i in range(weight.dim())]
        amax = torch.stack([torch.as_tensor(each) for each in ranges])
        found.append((quantizer, axis if perchannel else None, amax.reshape(shape)))
    if not found:
        raise CalibrationError(
            f"The model {type(model).__name__!r} has no module with a weight_quantizer."
        )
    # Set after all are computed: an error above leaves the model unchanged.
    for quantizer, kept, amax in found:
        quantizer.set_granularity(kept, amax)
