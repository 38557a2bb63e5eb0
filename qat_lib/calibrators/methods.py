"""Calibration methods: from a histogram to a range.

Sources: percentile and MSE as in Wu et al. 2020 (https://arxiv.org/abs/2004.09602); entropy as in
Migacz 2017, "8-bit Inference with TensorRT".
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from qat_lib.calibrators.histogram import MagnitudeHistogram
from qat_lib.errors import CalibrationError

CANDIDATES = 100
"""Number of candidate ranges for the least squared error, in addition to the distinct values of a
tensor with few of them."""
ENTROPY_BINS = 2048
"""Bins of the histogram for the entropy, as published."""
FIRST_END = 128
"""Bins of the shortest candidate range for the entropy, as published."""
PERCENTILE = 99.99
"""Default of ``"percentile"``."""
AUTO = "auto"
"""Default method: weighs each channel by the readers of the tensor."""


def range_from_histogram(
    histogram: MagnitudeHistogram,
    method: str,
    percentile: float = PERCENTILE,
    num_bits: int | tuple[int, int] = 8,
    *,
    unsigned: bool = False,
) -> float:
    """Return the range that ``method`` chooses from a histogram of magnitudes.

    Args:
        histogram: observed magnitudes.
        method: ``"max"`` the largest magnitude; ``"percentile"`` the magnitude below which
            ``percentile`` percent of the values lie; ``"entropy"`` the range with the least
            Kullback-Leibler divergence between the values before and after; ``"mse"`` the range
            with the least mean squared quantization error; ``"auto"`` the range with the least
            error in the outputs of the tensor's readers: the error of each element is weighted by
            the gain of its channel, if the histogram has gains.
        percentile: in (0, 100]. Default 99.99.
        num_bits: width of the integers; a tuple is a floating-point format (FP8), supported by
            ``"max"`` and ``"percentile"`` only. Default 8.
        unsigned: whether the integers are unsigned, with twice as many steps over the range.
            Default False.

    Raises:
        CalibrationError: the method is unknown or does not support ``num_bits``, or the percentile
            is out of range.
    """
    check_method(method, percentile)
    if isinstance(num_bits, tuple):
        if method not in ("max", "percentile"):
            raise CalibrationError(
                f"Expected the method max or percentile for FP8. Received: {method!r}, which weighs "
                "the errors of integers."
            )
        # The width has no effect on "max" and "percentile".
        num_bits = 8
    if histogram.upper == 0.0:
        return 0.0
    steps = 2 ** (num_bits if unsigned else num_bits - 1) - 1
    return min(METHODS[method](histogram, percentile, steps), histogram.observed_max)


def chosen_method(method: str | None, percentile: float | None) -> tuple[str, float]:
    """Return a calibrator and a percentile, with defaults for None.

    Raises:
        CalibrationError: see ``check_method``.
    """
    if method is None:
        # A percentile without a method selects "percentile".
        method = AUTO if percentile is None else "percentile"
    percentile = PERCENTILE if percentile is None else percentile
    check_method(method, percentile)
    return method, percentile


def check_method(method: str, percentile: float) -> None:
    """Check a calibrator and a percentile.

    Raises:
        CalibrationError: the calibrator is unknown, or the percentile is out of range.
    """
    if method not in METHODS:
        raise CalibrationError(
            f"Expected a calibrator among {', '.join(METHODS)}. Received: {method!r}."
        )
    if not 0 < percentile <= 100:
        raise CalibrationError(
            f"percentile must be in (0, 100]. Received: {percentile!r}, which is out of range."
        )


def _maximum(histogram: MagnitudeHistogram, *_: float) -> float:
    return histogram.observed_max


def _percentile(histogram: MagnitudeHistogram, percentile: float, *_: float) -> float:
    cumulative = np.cumsum(histogram.counts)
    index = int(np.searchsorted(cumulative, cumulative[-1] * percentile / 100.0))
    return float(histogram.edges[index + 1])


def _mse(histogram: MagnitudeHistogram, _: float, steps: int) -> float:
    return _least_error(histogram, histogram.counts, steps)


def _auto(histogram: MagnitudeHistogram, _: float, steps: int) -> float:
    costs = histogram.costs
    return _least_error(histogram, histogram.counts if costs is None else costs, steps)


def _least_error(histogram: MagnitudeHistogram, costs: np.ndarray, steps: int) -> float:
    """Return the range with the least squared error, weighted by a cost for each bin."""
    # The error of a bin is that of its center.
    centers = (histogram.edges[:-1] + histogram.edges[1:]) / 2
    candidates = np.linspace(
        histogram.observed_max / CANDIDATES, histogram.observed_max, CANDIDATES
    )
    filled = centers[histogram.counts > 0]
    if len(filled) <= CANDIDATES:
        # The best range of a tensor with few values is one of these, often between two candidates.
        candidates = np.union1d(candidates, np.minimum(filled, histogram.observed_max))
    errors = []
    for amax in candidates:
        scale = amax / steps
        error = centers - np.clip(np.rint(centers / scale), 0, steps) * scale
        errors.append(float(np.sum(costs * error**2)))
    return float(candidates[int(np.argmin(errors))])


def _entropy(histogram: MagnitudeHistogram, _: float, steps: int) -> float:
    levels = steps + 1
    counts = (
        histogram.counts.reshape(-1, len(histogram.counts) // ENTROPY_BINS)
        .sum(axis=1)
        .astype(np.float64)
    )
    counts[0] = counts[1]  # zeros (after a ReLU) say nothing about the range
    last = int(np.flatnonzero(counts)[-1]) + 1
    if last <= levels:
        return histogram.observed_max
    # Every filled bin is a candidate: the minimum lies at one of the few ranges that give all levels
    # equally many bins. The first candidate may lie below the others if outliers are far from the
    # rest.
    filled = np.flatnonzero(counts) + 1
    first = int(np.searchsorted(filled, min(levels, FIRST_END), side="right")) - 1
    ends = filled[max(first, 0) :]
    divergences = np.array([_divergence(counts[:last], int(end), levels) for end in ends])
    # Among equal divergences, the range that clips least.
    best = int(ends[np.flatnonzero(divergences == divergences.min())[-1]])
    return histogram.upper * best / ENTROPY_BINS


def _divergence(counts: np.ndarray, end: int, levels: int) -> float:
    """Return the Kullback-Leibler divergence of the clipped values from their quantized form."""
    inside = counts[:end]
    outliers = counts[end:].sum()
    clipped = inside.copy()
    # Clipped values count at the end of the range in the reference, but not in the quantized form:
    # that mismatch is the cost of clipping.
    clipped[-1] += outliers
    group = np.arange(end) * levels // end
    filled = inside > 0
    sums = np.bincount(group, weights=inside, minlength=levels)
    # A level spreads its mass over its filled bins only, as published.
    quantized = sums[group] / np.maximum(
        np.bincount(group, weights=filled, minlength=levels)[group], 1
    )
    p, q = clipped[filled] / clipped.sum(), quantized[filled] / inside.sum()
    return float(np.sum(p * np.log(p / q)))


METHODS: dict[str, Callable[[MagnitudeHistogram, float, int], float]] = {
    "max": _maximum,
    "percentile": _percentile,
    "entropy": _entropy,
    "mse": _mse,
    AUTO: _auto,
}
