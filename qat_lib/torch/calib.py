"""Calibrators of single quantizers, as pytorch-quantization names them.

``qat_lib.torch.calibrate`` calibrates a whole model in one call, and needs none of these.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch

from qat_lib.calibrators.methods import range_from_histogram
from qat_lib.errors import CalibrationError
from qat_lib.ranges import reduced_axes
from qat_lib.torch.histogram import Histogram
from qat_lib.torch.tensor_quant import QuantDescriptor


class Calibrator(Protocol):
    """What collects the tensors of one quantizer."""

    def collect(self, x: torch.Tensor) -> None:
        """Take note of a tensor."""

    def compute_amax(self, *args: Any, **kwargs: Any) -> torch.Tensor | None:
        """Return the range of what was collected; None without any."""

    def reset(self) -> None:
        """Forget what was collected."""


def create_calibrator(descriptor: QuantDescriptor) -> Calibrator:
    """Return the calibrator that a descriptor asks for."""
    kind = HistogramCalibrator if descriptor.calib_method == "histogram" else MaxCalibrator
    return kind(descriptor.num_bits, descriptor.axes, descriptor.unsigned)


class MaxCalibrator:
    """The largest magnitude of all tensors, or of each kept channel.

    Args:
        num_bits: width of the integers.
        axis: axes that keep a range of their own; None = one range.
        unsigned: whether the integers are unsigned.
        track_amax: whether to keep the range of each tensor in ``amaxs``. Default False.
    """

    def __init__(
        self,
        num_bits: int = 8,
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
        """Forget what was collected."""
        self.amaxs: list[Any] = []
        self._amax: torch.Tensor | None = None

    def collect(self, x: torch.Tensor) -> None:
        """Take note of a tensor.

        Raises:
            CalibrationError: the kept axes have other sizes than before.
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
            raise CalibrationError(
                f"Expected a range of the shape {tuple(self._amax.shape)}, as of the tensors "
                f"before. Received: {tuple(seen.shape)}."
            )
        else:
            self._amax = torch.maximum(self._amax, seen)
        if self.track_amax:
            self.amaxs.append(seen.cpu().numpy())

    def compute_amax(self) -> torch.Tensor | None:
        """Return the largest magnitude; None without any tensor."""
        return self._amax


class HistogramCalibrator:
    """A histogram of magnitudes, from which several methods take a range.

    Args:
        num_bits: width of the integers.
        axis: must be None: a histogram has one range.
        unsigned: whether the integers are unsigned.

    Raises:
        CalibrationError: ``axis`` is given.
    """

    def __init__(self, num_bits: int = 8, axis: Any = None, unsigned: bool = False) -> None:
        if axis is not None:
            raise CalibrationError(
                "A histogram gives one range: use calib_method='max' with an axis. Received: "
                f"axis={axis!r}."
            )
        self.num_bits = num_bits
        self.axis = axis
        self.unsigned = unsigned
        self.reset()

    def reset(self) -> None:
        """Forget what was collected."""
        self.histogram = Histogram()

    def collect(self, x: torch.Tensor) -> None:
        """Count the magnitudes of a tensor.

        Raises:
            CalibrationError: a value is not finite.
        """
        magnitude = x.detach().float()
        magnitude = magnitude.relu() if self.unsigned else magnitude.abs()
        largest = float(magnitude.amax())
        if not largest < float("inf"):
            raise CalibrationError(
                "A tensor has NaN or infinite values. Check the calibration data and the model: "
                "its FP32 outputs must be finite."
            )
        self.histogram.add(magnitude, largest)

    def compute_amax(
        self, method: str = "percentile", *, percentile: float = 99.99
    ) -> torch.Tensor | None:
        """Return the range that a method takes; None without any tensor.

        Args:
            method: ``"max"``, ``"percentile"`` (default), ``"entropy"`` or ``"mse"``.
            percentile: in (0, 100]. Default 99.99.

        Raises:
            CalibrationError: the method is not known or the percentile is out of range.
        """
        if not self.histogram.counts.any():
            return None
        return torch.tensor(
            range_from_histogram(
                self.histogram, method, percentile, self.num_bits, unsigned=self.unsigned
            )
        )
