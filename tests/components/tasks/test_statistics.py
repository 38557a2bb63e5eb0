"""Paired tests against known values, and against simulated networks."""

from __future__ import annotations

import math

import numpy as np
import pytest

from qatline.components.artifacts.comparison import PairedTest
from qatline.components.artifacts.metric import Metric
from qatline.components.tasks.statistics import (
    binomial_tail,
    bootstrap_test,
    mcnemar_test,
    wilcoxon_test,
)

ERROR = Metric(name="mae", higher_is_better=False)
SCORE = Metric(name="score")


def answers(both: int, ours: int, theirs: int, neither: int) -> tuple[np.ndarray, np.ndarray]:
    """Return who answers which sample correctly, from the four counts."""
    candidate = [True] * both + [True] * ours + [False] * theirs + [False] * neither
    champion = [True] * both + [False] * ours + [True] * theirs + [False] * neither
    return np.array(candidate), np.array(champion)


@pytest.mark.parametrize(
    ("hits", "trials", "expected"),
    [(0, 0, 1.0), (0, 5, 1.0), (5, 5, 1 / 32), (3, 5, 0.5), (9, 10, 11 / 1024), (15, 20, 0.020695)],
)
def test_binomial_tail_is_exact(hits: int, trials: int, expected: float) -> None:
    assert binomial_tail(hits, trials) == pytest.approx(expected, abs=1e-6)


def test_binomial_tail_of_many_trials_stays_finite() -> None:
    assert binomial_tail(50_000, 100_000) == pytest.approx(0.5, abs=0.01)
    assert binomial_tail(60_000, 100_000) == pytest.approx(0.0, abs=1e-300)


def test_mcnemar_counts_what_only_one_gets_right() -> None:
    test = mcnemar_test(*answers(80, 9, 1, 10))
    assert (test.only_candidate, test.only_champion, test.samples) == (9, 1, 100)
    assert test.difference == pytest.approx(0.08)
    assert test.p_better == pytest.approx(11 / 1024)
    assert test.p_worse == pytest.approx(1 - 1 / 1024)
    assert test.low is not None
    assert test.high is not None
    assert 0 < test.low < 0.08 < test.high


def test_mcnemar_of_equal_classifiers_tells_nothing() -> None:
    test = mcnemar_test(*answers(90, 0, 0, 10))
    assert (test.p_better, test.p_worse, test.difference) == (1.0, 1.0, 0.0)
    assert test.low == pytest.approx(-test.high if test.high is not None else math.nan)


def test_mcnemar_keeps_its_level() -> None:
    generator = np.random.default_rng(0)
    called = 0
    for _ in range(1000):
        right = generator.random((2, 200)) < 0.9
        called += mcnemar_test(right[0], right[1]).p_better <= 0.05
    assert called <= 60  # exact tests are conservative


def test_mcnemar_covers_the_difference() -> None:
    generator = np.random.default_rng(1)
    inside = 0
    for _ in range(500):
        ours, theirs = generator.random(300) < 0.9, generator.random(300) < 0.85
        test = mcnemar_test(ours, theirs)
        inside += test.low <= 0.05 <= test.high
    assert 0.92 <= inside / 500 <= 0.98


def test_wilcoxon_follows_the_direction_of_the_metric() -> None:
    generator = np.random.default_rng(3)
    errors = generator.random(100)
    lower = errors - generator.random(100) * 0.1
    better, worse = wilcoxon_test(lower, errors, ERROR), wilcoxon_test(lower, errors, SCORE)
    assert better.p_better < 0.001 < 0.999 < better.p_worse
    assert (worse.p_better, worse.p_worse) == (better.p_worse, better.p_better)
    assert better.difference == pytest.approx((lower - errors).mean())
    assert better.low < better.difference < better.high < 0


def test_wilcoxon_of_equal_scores_tells_nothing() -> None:
    test = wilcoxon_test(np.ones(20), np.ones(20), ERROR)
    assert (test.p_better, test.p_worse, test.difference) == (1.0, 1.0, 0.0)


def bootstrap(ours: np.ndarray, theirs: np.ndarray) -> PairedTest:
    """Return the test of the means of two sets of scores."""
    values = [lambda rows, each=each: float(each[rows].mean()) for each in (ours, theirs)]
    return bootstrap_test(*values, len(ours), SCORE)


def test_bootstrap_finds_a_difference_and_none_between_equals() -> None:
    generator = np.random.default_rng(4)
    scores = generator.random(80)
    more = scores + generator.random(80) * 0.2
    test = bootstrap(more, scores)
    assert test.p_better == 1 / 2000
    assert test.p_worse == 1.0
    assert 0 < test.low < test.difference < test.high
    same = bootstrap(scores, scores)
    assert (same.p_better, same.p_worse, same.difference) == (1.0, 1.0, 0.0)


@pytest.mark.matrix
def test_bootstrap_keeps_its_level() -> None:
    generator = np.random.default_rng(5)
    called = 0
    for _ in range(100):
        ours, theirs = generator.random(60), generator.random(60)
        called += bootstrap(ours, theirs).p_better <= 0.05
    assert called <= 10


def test_bootstrap_without_a_value_tells_nothing() -> None:
    empty = np.full(5, np.nan)
    test = bootstrap(empty, empty)
    assert (test.p_better, test.p_worse, test.difference) == (None, None, None)
