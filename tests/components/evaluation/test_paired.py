"""Paired tests against known values, and against simulated classifiers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from qatline.components.evaluation.paired import (
    binomial_tail,
    compare_answers,
    compare_classes,
    compare_with_chance,
    correct,
)


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


def test_compare_answers_counts_what_only_one_gets_right() -> None:
    test = compare_answers(*answers(80, 9, 1, 10))
    assert (test.only_candidate, test.only_champion, test.samples) == (9, 1, 100)
    assert test.difference == pytest.approx(0.08)
    assert test.p_better == pytest.approx(11 / 1024)
    assert test.p_worse == pytest.approx(1 - 1 / 1024)
    assert test.low is not None
    assert test.high is not None
    assert 0 < test.low < 0.08 < test.high


def test_compare_answers_of_equal_classifiers_tells_nothing() -> None:
    test = compare_answers(*answers(90, 0, 0, 10))
    assert (test.p_better, test.p_worse, test.difference) == (1.0, 1.0, 0.0)
    assert test.low == pytest.approx(-test.high if test.high is not None else math.nan)


def test_compare_answers_keeps_its_level() -> None:
    generator = np.random.default_rng(0)
    called = 0
    for _ in range(1000):
        right = generator.random((2, 200)) < 0.9
        called += compare_answers(right[0], right[1]).p_better <= 0.05
    assert called <= 60  # exact tests are conservative


def test_compare_answers_covers_the_difference() -> None:
    generator = np.random.default_rng(1)
    inside = 0
    for _ in range(500):
        ours, theirs = generator.random(300) < 0.9, generator.random(300) < 0.85
        test = compare_answers(ours, theirs)
        inside += test.low <= 0.05 <= test.high
    assert 0.92 <= inside / 500 <= 0.98


def test_compare_classes_corrects_for_their_number() -> None:
    candidate, champion = answers(10, 0, 6, 4)
    labels = np.concatenate([np.zeros(20, np.int64), np.ones(20, np.int64)])
    twice = np.concatenate([candidate, champion]), np.concatenate([champion, champion])
    tests = compare_classes(*twice, labels, ["a", "b", "absent"])
    assert [test.name for test in tests] == ["a", "b", "absent"]
    assert (tests[2].samples, tests[2].candidate, tests[2].p_worse) == (0, None, None)
    assert tests[0].p_worse == pytest.approx(2 / 64)
    assert tests[1].p_worse == 1.0
    assert (tests[0].candidate, tests[0].champion) == (0.5, 0.8)


def test_chance_of_a_constant_answer_is_its_own_accuracy() -> None:
    test = compare_with_chance([[0, 90], [0, 10]])
    assert test is not None
    assert (test.p_value, test.accuracy, test.chance) == (1.0, 0.1, pytest.approx(0.1))


def test_chance_is_beaten_on_rare_classes_too() -> None:
    test = compare_with_chance([[70, 20], [1, 9]])  # less accurate than always "0"
    assert test is not None
    assert test.p_value is not None
    assert test.p_value < 0.01


def test_chance_has_a_p_value_above_zero() -> None:
    """The observed labels are one of the permutations, so their share is at least 1 in 2000."""
    test = compare_with_chance((np.eye(10, dtype=np.int64) * 30).tolist())
    assert test is not None
    assert test.p_value == 1 / 2000


def test_chance_keeps_its_level() -> None:
    generator = np.random.default_rng(2)
    called = 0
    for _ in range(60):
        counts = np.zeros((4, 4), np.int64)
        np.add.at(counts, tuple(generator.integers(0, 4, (2, 80))), 1)
        test = compare_with_chance(counts.tolist())
        called += test is not None and test.p_value <= 0.05
    assert called <= 8


@pytest.mark.parametrize("counts", [[], [[]], [[0, 0], [0, 0]], [[1, 2]], [[1, -1], [0, 3]]])
def test_chance_of_nothing_is_unknown(counts: list[list[int]]) -> None:
    assert compare_with_chance(counts) is None


def test_correct_compares_the_best_class() -> None:
    outputs = np.array([[0.1, 0.9], [0.8, 0.2]], np.float32)
    assert correct(outputs, np.array([1, 1])).tolist() == [True, False]
