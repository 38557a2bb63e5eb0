"""Ranges from kept histograms, and clipped weights, for ``calibrators.py``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from qat_lib.calibrators.methods import METHODS
from qat_lib.core.ranges import greatest_integer, reduced_axes
from qat_lib.keras.quantizers import model_quantizers

SHARES = np.linspace(0.3, 1.0, 36)
"""Ranges that are tried of a weight, over its largest magnitude."""


class _Counts:
    """Counts of a calibration's report, as range methods take them."""

    def __init__(self, statistics: Any) -> None:
        self.counts, self.edges = statistics.counts, statistics.edges
        self.observed_max, self.upper = statistics.observed_max, float(statistics.edges[-1])


def quantizers_of(model: Any) -> dict[str, Any]:
    """Return a model's quantizers by name."""
    return dict(model_quantizers(model))


def ranges_by(model: Any, report: Any, method: str, percentile: float) -> dict[str, float]:
    """Return each activation's range by a method, from a calibration's histograms."""
    quantizers, found = quantizers_of(model), {}
    for name, statistics in report.tensors.items():
        quantizer, own = quantizers[name], quantizers[name].calibrator
        high = int(greatest_integer(quantizer.num_bits, quantizer.unsigned))
        counts: Any = _Counts(statistics)
        amax = METHODS[own or method](counts, percentile, high)
        found[name] = min(amax, statistics.observed_max)
    return found


def clip_weights(quantizers: Iterable[Any]) -> None:
    """Clip each weight, per channel, to the range with the least squared error."""
    for quantizer in quantizers:
        if not quantizer.of_weight:
            continue
        variable = quantizer.weight
        weights = tf.convert_to_tensor(variable).numpy()
        axes = tuple(reduced_axes(weights.ndim, quantizer.channel_axes))
        high = greatest_integer(quantizer.num_bits, False)
        largest = np.abs(weights).max(axis=axes, keepdims=True)
        best, least = largest, np.full(largest.shape, np.inf)
        for share in SHARES:
            step = np.maximum(share * largest, 1e-12) / high
            error = np.clip(np.rint(weights / step), -high, high) * step - weights
            square = np.sum(error**2, axis=axes, keepdims=True)
            best = np.where(square <= least, share * largest, best)
            least = np.minimum(square, least)
        variable.assign(np.clip(weights, -best, best))
