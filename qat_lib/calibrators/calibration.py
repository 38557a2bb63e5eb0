"""One calibration, whatever the framework: observe each batch, then set the ranges."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from qat_lib.calibrators.batches import count_samples
from qat_lib.calibrators.collecting import collecting
from qat_lib.calibrators.histogram import MagnitudeHistogram
from qat_lib.calibrators.methods import range_from_histogram
from qat_lib.calibrators.report import CalibrationReport, TensorStatistics
from qat_lib.errors import CalibrationError

logger = logging.getLogger("qat_lib")


@dataclass(frozen=True, kw_only=True)
class SeenTensor:
    """One tensor as calibration sees it.

    Attributes:
        magnitude: distance of each element from zero, as its quantizer measures it.
        largest: greatest magnitude.
        negative: whether an element is below zero; false where it makes no difference.
    """

    magnitude: Any
    largest: float
    negative: bool


class Histograms(ABC):
    """One histogram for each quantizer; a shared one gets all its tensors."""

    histogram: ClassVar[type[MagnitudeHistogram]]

    def __init__(self) -> None:
        self.found: dict[str, MagnitudeHistogram] = {}
        self.cut: set[str] = set()
        self.not_finite: str | None = None

    @abstractmethod
    def measure(self, quantizer: Any, tensor: Any) -> SeenTensor | None:
        """Return the magnitudes of a framework's tensor; None if empty."""

    def observe(self, quantizer: Any, tensor: Any) -> None:
        """Count the magnitudes of a tensor, unless its range needs no data."""
        if quantizer.range_policy == "current" or quantizer.of_weight:
            return
        measured = self.measure(quantizer, tensor)
        if measured is None:
            return
        if measured.negative:
            self.cut.add(quantizer.name)
        if not np.isfinite(measured.largest):
            self.not_finite = self.not_finite or quantizer.name
            return
        histogram = self.found.setdefault(quantizer.name, self.histogram())
        histogram.add(measured.magnitude, measured.largest)


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """What is to be done with a model's quantizers.

    Attributes:
        quantizers: those of the model, by name.
        method: calibrator of those without one of their own.
        percentile: for ``"percentile"``, in (0, 100].
        freeze: whether ranges stay as calibrated while the model trains.
    """

    quantizers: Mapping[str, Any]
    method: str
    percentile: float
    freeze: bool

    def run(
        self,
        histograms: Histograms,
        batches: Iterable[Any],
        call_model: Callable[[Any], Any],
        on_batch: Callable[[int], None] | None = None,
    ) -> CalibrationReport:
        """Show each batch to the model, then set every range.

        Raises:
            CalibrationError: the data is empty, or values are not finite.
        """
        done = samples = 0
        with collecting(histograms):
            for batch in batches:
                call_model(batch)
                # Not raised within the call, where Keras adds its own text to a message.
                _check_finite(histograms)
                done += 1
                samples += count_samples(batch)
                if on_batch is not None:
                    on_batch(done)
        if samples == 0:
            raise CalibrationError("The calibration data is empty: give at least one batch.")
        _warn_of_cuts(histograms)
        return CalibrationReport(
            tensors=self._set_ranges(histograms.found), batches=done, samples=samples
        )

    def _set_ranges(self, found: Mapping[str, MagnitudeHistogram]) -> dict[str, TensorStatistics]:
        for quantizer in self.quantizers.values():
            if quantizer.of_weight:
                quantizer.fit_weight()
        report = {}
        for name, histogram in found.items():
            quantizer = self.quantizers[name]
            chosen = quantizer.calibrator or self.method
            amax = range_from_histogram(
                histogram, chosen, self.percentile, quantizer.num_bits, unsigned=quantizer.unsigned
            )
            # A factor on calibrated ranges, which quantizers of PyTorch may have.
            quantizer.amax = amax * (getattr(quantizer, "scale_amax", None) or 1.0)
            if self.freeze:
                quantizer.freeze()
            report[name] = _statistics(quantizer, histogram, chosen)
        return report


def _statistics(quantizer: Any, histogram: MagnitudeHistogram, method: str) -> TensorStatistics:
    return TensorStatistics(
        amax=float(quantizer.amax),
        observed_max=histogram.observed_max,
        method=method,
        values=int(histogram.counts.sum()),
        counts=histogram.counts,
        edges=histogram.edges,
    )


def _check_finite(histograms: Histograms) -> None:
    if histograms.not_finite is not None:
        raise CalibrationError(
            f"The tensor of quantizer {histograms.not_finite!r} has NaN or infinite values. "
            "Check the calibration data and the model: its FP32 outputs must be finite."
        )


def _warn_of_cuts(histograms: Histograms) -> None:
    if histograms.cut:
        logger.warning(
            "Unsigned quantizers saw negative values, which they turn into 0: %d of them, such as "
            "%s. "
            "Unless that is meant, quantize these tensors with unsigned=False.",
            len(histograms.cut),
            min(histograms.cut),
        )
