"""Paired tests of two networks on the same samples.

Pairing the scores of each sample removes the variance between easy and hard samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qatline.components.artifacts.comparison import PairedTest
from qatline.components.artifacts.metric import Metric

Array = NDArray[Any]

LEVEL = 0.05
"""Level of the test against chance; it is not configurable."""

RESAMPLES = 1999
_NORMAL_975 = 1.959964  # quantile of the normal distribution for an interval of 95 %


def mcnemar_test(candidate: NDArray[np.bool_], champion: NDArray[np.bool_]) -> PairedTest:
    """Test the difference of two classifiers by McNemar's exact test.

    If both are equally good, samples predicted correctly by only one of them are equally likely for
    each. The interval of the difference follows Agresti and Min, Simple improved confidence
    intervals for comparing matched proportions, 2005.

    Args:
        candidate: whether it predicts each sample correctly, ``(samples,)``.
        champion: the same for the champion.

    Returns:
        The counts, one-sided p-values, and the difference of the accuracies with its 95 % interval.
    """
    gained = int((candidate & ~champion).sum())
    lost = int((champion & ~candidate).sum())
    samples = len(candidate)
    low, high = _interval(gained, lost, samples)
    return PairedTest(
        name="McNemar's test",
        samples=samples,
        only_candidate=gained,
        only_champion=lost,
        difference=(gained - lost) / samples,
        low=low,
        high=high,
        p_better=binomial_tail(gained, gained + lost),
        p_worse=binomial_tail(lost, gained + lost),
    )


def wilcoxon_test(candidate: Array, champion: Array, metric: Metric) -> PairedTest:
    """Test the difference of two sets of scores by Wilcoxon's signed-rank test.

    Args:
        candidate: score of each sample, ``(samples,)``.
        champion: the same for the champion.
        metric: the metric whose values the scores are.

    Returns:
        One-sided p-values, and the difference of the means with its 95 % interval from the normal
        distribution. Equal scores give p-values of 1.
    """
    from scipy.stats import wilcoxon

    differences = np.asarray(candidate, np.float64) - np.asarray(champion, np.float64)
    samples, mean = len(differences), float(differences.mean())
    error = float(differences.std(ddof=1)) / math.sqrt(samples) if samples > 1 else math.inf
    p_above = p_below = 1.0
    if differences.any():
        p_above = float(wilcoxon(differences, alternative="greater").pvalue)
        p_below = float(wilcoxon(differences, alternative="less").pvalue)
    better, worse = (p_above, p_below) if metric.higher_is_better else (p_below, p_above)
    return PairedTest(
        name="Wilcoxon's signed-rank test",
        samples=samples,
        difference=mean,
        low=mean - _NORMAL_975 * error,
        high=mean + _NORMAL_975 * error,
        p_better=better,
        p_worse=worse,
    )


def bootstrap_test(
    candidate: Callable[[Array], float],
    champion: Callable[[Array], float],
    samples: int,
    metric: Metric,
    *,
    seed: int = 0,
) -> PairedTest:
    """Test the difference of two values of a metric by a paired bootstrap over the samples.

    Source: Efron and Tibshirani, An Introduction to the Bootstrap, 1993, chapter 16. The p-value is
    the share of resampled differences that do not have the sign of an improvement.

    Args:
        candidate: computes the metric of some samples, given their indices.
        champion: the same for the champion.
        samples: number of samples.
        metric: its direction.
        seed: seed of the resampling.
    """
    generator = np.random.default_rng(seed)
    found = np.empty(RESAMPLES)
    for index in range(RESAMPLES):
        rows = generator.integers(0, samples, samples)
        found[index] = candidate(rows) - champion(rows)
    # A resample without any value of the metric, such as one without objects, decides nothing.
    found = found[np.isfinite(found)]
    every = np.arange(samples)
    difference = candidate(every) - champion(every)
    if not len(found) or not math.isfinite(difference):
        return PairedTest(name="paired bootstrap", samples=samples)
    gains = found if metric.higher_is_better else -found
    low, high = np.quantile(found, [0.025, 0.975])
    return PairedTest(
        name="paired bootstrap",
        samples=samples,
        difference=difference,
        low=float(low),
        high=float(high),
        # The observed sample counts as one resample: the p-value is never 0.
        p_better=(1 + int((gains <= 0).sum())) / (1 + len(gains)),
        p_worse=(1 + int((gains >= 0).sum())) / (1 + len(gains)),
    )


def binomial_tail(hits: int, trials: int) -> float:
    """Return the probability of at least ``hits`` heads in ``trials`` tosses of a fair coin."""
    if hits <= 0:
        return 1.0
    # Logarithms: binomial coefficients of thousands of samples overflow a float.
    whole = math.lgamma(trials + 1) - trials * math.log(2)
    total = 0.0
    for count in range(hits, trials + 1):
        total += math.exp(whole - math.lgamma(count + 1) - math.lgamma(trials - count + 1))
    return min(total, 1.0)


def _interval(gained: int, lost: int, samples: int) -> tuple[float, float]:
    """Return the 95 % interval of a difference of paired shares.

    Half a sample is added to each of the four cells, two to the total.
    """
    total = samples + 2
    difference = (gained - lost) / total
    spread = (gained + lost + 1) / total - difference**2
    half = _NORMAL_975 * math.sqrt(max(spread, 0.0) / total)
    return max(difference - half, -1.0), min(difference + half, 1.0)
