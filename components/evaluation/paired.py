"""Paired tests: two classifiers on the same samples, and one against chance.

Pairing the predictions of each sample removes the variance between easy and hard samples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qatline.components.artifacts.comparison import ChanceTest, ClassTest, PairedTest

Right = NDArray[np.bool_]
Labels = NDArray[np.int64]

LEVEL = 0.05
"""Level of the test against chance; it is not configurable."""

_PERMUTATIONS = 1999
_NORMAL_975 = 1.959964  # quantile of the normal distribution for an interval of 95 %


def compare_answers(candidate: Right, champion: Right) -> PairedTest:
    """Test the difference of two classifiers on the same samples.

    McNemar's exact test: if both are equally good, samples predicted correctly by only one of them
    are equally likely for each. The interval of the difference follows Agresti and Min, Simple
    improved confidence intervals for comparing matched proportions, 2005.

    Args:
        candidate: whether it predicts each sample correctly, ``(samples,)``.
        champion: the same for the champion.

    Returns:
        The counts, one-sided p-values, and the difference of the accuracies with its 95 % interval.
    """
    only_candidate = int((candidate & ~champion).sum())
    only_champion = int((champion & ~candidate).sum())
    samples = len(candidate)
    low, high = _interval(only_candidate, only_champion, samples)
    return PairedTest(
        samples=samples,
        only_candidate=only_candidate,
        only_champion=only_champion,
        difference=(only_candidate - only_champion) / samples,
        low=low,
        high=high,
        p_better=binomial_tail(only_candidate, only_candidate + only_champion),
        p_worse=binomial_tail(only_champion, only_candidate + only_champion),
    )


def compare_classes(
    candidate: Right, champion: Right, labels: Labels, names: Sequence[str]
) -> list[ClassTest]:
    """Test each class separately; accuracies of classes without samples are None.

    The p-values are those of McNemar's test, multiplied by the number of classes with samples
    (Bonferroni).
    """
    present = len(np.unique(labels))
    found = []
    for index, name in enumerate(names):
        ours, theirs = candidate[labels == index], champion[labels == index]
        if not len(ours):
            found.append(ClassTest(name=name, samples=0))
            continue
        lost, gained = int((theirs & ~ours).sum()), int((ours & ~theirs).sum())
        found.append(
            ClassTest(
                name=name,
                samples=len(ours),
                candidate=float(ours.mean()),
                champion=float(theirs.mean()),
                p_worse=min(binomial_tail(lost, lost + gained) * present, 1.0),
            )
        )
    return found


def compare_with_chance(confusion: Sequence[Sequence[int]], *, seed: int = 0) -> ChanceTest | None:
    """Test whether predictions depend on the labels.

    A permutation test: the predictions are paired with shuffled labels, and the p-value is the
    frequency of at least the same accuracy. Constant and random classifiers are never significantly
    better than chance, independent of the class shares.

    Args:
        confusion: counts, ``(classes, classes)``, with labels as rows and predictions as columns.
        seed: seed of the permutations.

    Returns:
        The test, or None for an empty or invalid matrix.
    """
    counts = np.asarray(confusion, np.int64)
    samples = int(counts.sum()) if counts.ndim == 2 else 0
    if not samples or counts.shape[0] != counts.shape[1] or (counts < 0).any():
        return None
    cells = np.repeat(np.arange(counts.size), counts.ravel())
    labels, answers = cells // len(counts), cells % len(counts)
    hits, generator = int(np.trace(counts)), np.random.default_rng(seed)
    as_good = 0
    for _ in range(_PERMUTATIONS):
        as_good += int((generator.permutation(labels) == answers).sum()) >= hits
    by_chance = float((counts.sum(axis=0) * counts.sum(axis=1)).sum()) / samples**2
    return ChanceTest(
        samples=samples,
        accuracy=hits / samples,
        chance=by_chance,
        # The observed labelling counts as one permutation: the p-value is never 0.
        p_value=(1 + as_good) / (1 + _PERMUTATIONS),
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


def correct(outputs: NDArray[Any], labels: Labels) -> Right:
    """Return whether each sample's prediction is its label, ``(samples,)``."""
    return np.asarray(outputs.argmax(axis=1) == labels)


def _interval(gained: int, lost: int, samples: int) -> tuple[float, float]:
    """Return the 95 % interval of a difference of paired shares.

    Half a sample is added to each of the four cells, two to the total.
    """
    total = samples + 2
    difference = (gained - lost) / total
    spread = (gained + lost + 1) / total - difference**2
    half = _NORMAL_975 * math.sqrt(max(spread, 0.0) / total)
    return max(difference - half, -1.0), min(difference + half, 1.0)
