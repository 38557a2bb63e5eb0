"""Calibration, independent of the framework: observe each batch, then set the ranges."""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, ClassVar

import numpy as np

from qat_lib.calibrators.batches import count_samples
from qat_lib.calibrators.collecting import collecting
from qat_lib.calibrators.gains import Gains
from qat_lib.calibrators.histogram import MagnitudeHistogram
from qat_lib.calibrators.methods import AUTO, range_from_histogram
from qat_lib.calibrators.sampling import IN_ALL, PER_SAMPLE, along, count_array
from qat_lib.errors import CalibrationError

logger = logging.getLogger("qat_lib")

AHEAD = 3
"""Batches to read ahead; if there are no more than these, more elements of each are counted."""


@dataclass(frozen=True, kw_only=True)
class TensorStatistics:
    """Statistics of one tensor and its calibrated range."""

    amax: float
    observed_max: float
    method: str
    values: int
    counts: np.ndarray | None = field(default=None, repr=False)
    edges: np.ndarray | None = field(default=None, repr=False)


@dataclass(frozen=True, kw_only=True, repr=False)
class CalibrationReport:
    """Statistics of every calibrated quantizer, by name."""

    tensors: dict[str, TensorStatistics]
    batches: int
    samples: int

    def __repr__(self) -> str:
        """Return a one-line summary."""
        return f"<CalibrationReport: {len(self.tensors)} tensors, {self.samples} samples>"


@dataclass(frozen=True, kw_only=True)
class SeenTensor:
    """Magnitudes of one tensor.

    Attributes:
        magnitude: distance of each element from zero, as measured by its quantizer.
        largest: greatest magnitude.
        negative: whether an element is below zero; always false if the sign is irrelevant.
    """

    magnitude: Any
    largest: float
    negative: bool


class Histograms(ABC):
    """One histogram for each quantizer; a shared quantizer counts all its tensors in one.

    Args:
        gains: squared gains of the channels, by quantizer. Default None: all channels are equal.

    Attributes:
        found: the histograms, by quantizer.
        cut: names of unsigned quantizers with negative inputs.
        not_finite: name of the first quantizer with NaN or infinite inputs, or None.
        budget: elements to count of each sample of a tensor.
    """

    histogram: ClassVar[type[MagnitudeHistogram]]

    def __init__(self, gains: Gains | None = None) -> None:
        self._gains = gains or {}
        self.found: dict[str, MagnitudeHistogram] = {}
        self.cut: set[str] = set()
        self.not_finite: str | None = None
        self.budget = PER_SAMPLE
        self._thresholds: dict[str, float] = {}

    @abstractmethod
    def as_array(self, tensor: Any) -> np.ndarray | None:
        """Return a framework's tensor as a float32 array, or None if that requires a copy."""

    @abstractmethod
    def channel_axis(self, rank: int) -> int:
        """Return the framework's channel axis for tensors of this rank."""

    @abstractmethod
    def measure(self, quantizer: Any, tensor: Any) -> SeenTensor:
        """Return the magnitudes of a non-empty tensor without an array view."""

    def observe(self, quantizer: Any, tensor: Any) -> None:
        """Count the magnitudes of a tensor, unless its range does not depend on data."""
        if not needs_data(quantizer) or 0 in tensor.shape:
            return
        array = self.as_array(tensor)
        if array is not None:
            self.count(quantizer, array)
            return
        measured = self.measure(quantizer, tensor)
        if self._is_usable(quantizer, measured.largest, negative=measured.negative):
            gains, rank = self._gains_of(quantizer, tensor.shape), len(tensor.shape)
            if gains is not None:
                gains = along(gains, self.channel_axis(rank), rank)
            histogram = self._histogram_of(quantizer)
            histogram.add(measured.magnitude, measured.largest, gains=gains)

    def count(self, quantizer: Any, array: np.ndarray) -> None:
        """Count an array; of a large one, its largest magnitudes and a sample of the others."""
        if array.size == 0:
            return
        counted = count_array(
            array,
            self.channel_axis(array.ndim),
            self.budget,
            self._thresholds.get(quantizer.name),
            unsigned=quantizer.unsigned,
            gains=self._gains_of(quantizer, array.shape),
        )
        if self._is_usable(quantizer, counted.largest, negative=counted.negative):
            for values, weight, gains in counted.values:
                self._histogram_of(quantizer).add(values, counted.largest, weight, gains)
            # The first batch sets the threshold: the same magnitudes count as outliers in all
            # batches.
            # Small arrays are counted as a whole and set no threshold.
            if counted.threshold is not None:
                self._thresholds[quantizer.name] = counted.threshold

    def _gains_of(self, quantizer: Any, shape: Sequence[int]) -> np.ndarray | None:
        """Return the gains of a tensor's channels; ones if the given gains have another length."""
        gains = self._gains.get(quantizer.name)
        channels = shape[self.channel_axis(len(shape))]
        return gains if gains is None or len(gains) == channels else np.ones(channels)

    def _histogram_of(self, quantizer: Any) -> MagnitudeHistogram:
        return self.found.setdefault(quantizer.name, self.histogram())

    def _is_usable(self, quantizer: Any, largest: float, *, negative: bool) -> bool:
        """Record the problems of a tensor; return whether it can be counted."""
        if not np.isfinite(largest):
            self.not_finite = self.not_finite or quantizer.name
            return False
        if negative and quantizer.unsigned:
            self.cut.add(quantizer.name)
        return True


def needs_data(quantizer: Any) -> bool:
    """Return whether a quantizer's range comes from data."""
    return not (quantizer.range_policy == "current" or quantizer.of_weight)


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Settings of a calibration.

    Attributes:
        quantizers: quantizers of the model, by name.
        method: calibrator of quantizers without an individual one.
        percentile: for ``"percentile"``, in (0, 100].
        freeze: whether training leaves the calibrated ranges unchanged.
        limits: greatest ranges, by quantizer. Default: none.
    """

    quantizers: Mapping[str, Any]
    method: str
    percentile: float
    freeze: bool
    limits: Mapping[str, float] = field(default_factory=dict)

    @property
    def needs_gains(self) -> bool:
        """Whether a range depends on the readers of its tensor."""
        methods = {quantizer.calibrator or self.method for quantizer in self.quantizers.values()}
        return AUTO in methods

    def run(
        self,
        histograms: Histograms,
        batches: Iterable[Any],
        call_model: Callable[[Any], Any],
        on_batch: Callable[[int], None] | None = None,
    ) -> CalibrationReport:
        """Run the model on each batch, then set every range.

        Raises:
            CalibrationError: the data is empty, or values are not finite.
        """
        done = samples = 0
        with collecting(histograms):
            for batch in _looked_ahead(batches, histograms):
                call_model(batch)
                # Raised outside of the call, because Keras adds its own text to messages inside.
                if histograms.not_finite is not None:
                    raise CalibrationError(
                        f"The tensor of quantizer {histograms.not_finite!r} has NaN or infinite "
                        "values. Check the calibration data and the model: its FP32 outputs must "
                        "be finite."
                    )
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
            # Weight ranges need no data.
            if quantizer.of_weight:
                quantizer.fit_weight()
        report = {}
        for name, histogram in found.items():
            quantizer = self.quantizers[name]
            chosen = quantizer.calibrator or self.method
            amax = range_from_histogram(
                histogram, chosen, self.percentile, quantizer.num_bits, unsigned=quantizer.unsigned
            )
            # A range within the bounds of a ChannelReLU makes the bounds redundant in the export.
            amax = min(amax, self.limits.get(name, math.inf))
            # Quantizers of PyTorch may scale their calibrated ranges.
            quantizer.amax = amax * (getattr(quantizer, "scale_amax", None) or 1.0)
            if self.freeze:
                quantizer.freeze()
            report[name] = _statistics(quantizer, histogram, chosen)
        return report


def _looked_ahead(batches: Iterable[Any], histograms: Histograms) -> Iterator[Any]:
    """Yield the batches; if there are few, count more elements of each sample."""
    iterator = iter(batches)
    first = list(islice(iterator, AHEAD + 1))
    if len(first) <= AHEAD:
        samples = sum(count_samples(batch) for batch in first)
        histograms.budget = max(PER_SAMPLE, IN_ALL // max(1, samples))
    yield from first
    yield from iterator


def _statistics(quantizer: Any, histogram: MagnitudeHistogram, method: str) -> TensorStatistics:
    return TensorStatistics(
        amax=float(quantizer.amax),
        observed_max=histogram.observed_max,
        method=method,
        values=int(histogram.counts.sum()),
        counts=histogram.counts,
        edges=histogram.edges,
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
