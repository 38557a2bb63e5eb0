"""Ranges of quantizers, with the calibration statistics of their tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from qat_lib.export.ranges import RangeOwner
from qatline.components.artifacts.models import QuantizerRange, RangeHistogram
from qatline.components.training.framework import Oscillation

HISTOGRAM_BINS = 128


def describe_ranges(
    quantizers: Mapping[str, RangeOwner], plan: Any, report: Any = None
) -> dict[str, QuantizerRange]:
    """Return tensor, range and, with a calibration report, histogram of each quantizer.

    Args:
        quantizers: quantizers of a model by name.
        plan: its QuantizationPlan.
        report: a CalibrationReport, or None.

    Returns:
        The range of each quantizer by name; histograms have 128 bins.
    """
    entries = {entry.name: entry for entry in plan.quantizers}
    seen = report.tensors if report is not None else {}
    described = {}
    for name, quantizer in quantizers.items():
        entry, statistics = entries.get(name), seen.get(name)
        amax = quantizer.amax
        described[name] = QuantizerRange(
            tensor=entry.tensor if entry else None,
            kind=entry.kind if entry else None,
            unsigned=quantizer.unsigned,
            amax=float(amax) if amax.ndim == 0 else amax.ravel().tolist(),
            observed_max=statistics.observed_max if statistics else None,
            method=statistics.method if statistics else None,
            histogram=_coarse(statistics) if statistics else None,
        )
    return described


def with_oscillation(
    ranges: Mapping[str, QuantizerRange], oscillation: Oscillation
) -> dict[str, QuantizerRange]:
    """Return ranges with the shares of oscillating and frozen weights, if measured."""
    described = dict(ranges)
    for name, share in oscillation.oscillating.items():
        shares = {"oscillating": share, "held": oscillation.frozen[name]}
        described[name] = described[name].model_copy(update=shares)
    return described


def _coarse(statistics: Any) -> RangeHistogram:
    """Merge fine bins into 128 bins over the observed range."""
    centers = (statistics.edges[:-1] + statistics.edges[1:]) / 2
    upper = statistics.observed_max or 1.0
    counts, edges = np.histogram(
        centers, bins=HISTOGRAM_BINS, range=(0.0, upper), weights=statistics.counts
    )
    return RangeHistogram(counts=counts.astype(float).tolist(), edges=edges.tolist())
