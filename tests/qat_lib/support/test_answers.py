"""Differences between answers."""

from __future__ import annotations

import numpy as np
import pytest

from qat_lib.support.answers import difference, differences, nudged, other_labels

RANDOM = np.random.default_rng(0)
LOGITS = RANDOM.standard_normal((6, 10)).astype(np.float32)


def test_equal_answers_do_not_differ() -> None:
    assert difference([LOGITS, LOGITS[:1]], [LOGITS, LOGITS[:1]]) == 0.0


def test_unrelated_answers_differ_by_more_than_any_bound() -> None:
    assert difference([RANDOM.standard_normal((6, 10))], [LOGITS]) > 1


def test_scale_of_the_outputs_does_not_matter() -> None:
    noisy = LOGITS + 0.01 * RANDOM.standard_normal(LOGITS.shape)
    expected = pytest.approx(difference([noisy], [LOGITS]))
    assert difference([1e6 * noisy], [1e6 * LOGITS]) == expected
    assert 0.003 < difference([noisy], [LOGITS]) < 0.03


def test_one_wrong_sample_among_many_is_seen() -> None:
    many = RANDOM.standard_normal((256, 10))
    wrong = many.copy()
    wrong[255] = RANDOM.standard_normal(10)
    assert difference([wrong], [many]) > 0.1
    assert difference([wrong[255:]], [many[255:]]) > 0.75


def test_nearly_constant_answers_may_differ_by_their_rounding() -> None:
    constant = np.full((6, 10), 0.1, np.float32)
    assert difference([np.nextafter(constant, np.float32(1))], [constant]) < 1e-5
    assert difference([constant * 1.1], [constant]) > 0.75
    assert difference([np.zeros((6, 10))], [np.zeros((6, 10))]) == 0.0


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_infinite_answers_must_be_infinite_in_both(value: float) -> None:
    infinite = LOGITS.copy()
    infinite[2, 3] = value
    assert difference([infinite], [infinite]) == 0.0
    assert difference([infinite], [LOGITS]) == float("inf")
    assert difference([LOGITS], [infinite]) == float("inf")


def test_other_shapes_differ() -> None:
    assert difference([LOGITS[:, :9]], [LOGITS]) == float("inf")


def test_integers_differ_by_the_share_that_is_unequal() -> None:
    labels = np.arange(10)
    assert difference([labels, labels], [labels, np.roll(labels, 1)]) == 0.5


def test_answers_without_a_batch_are_one_sample() -> None:
    assert difference([np.float32(1.0)], [np.float32(1.0)]) == 0.0  # type: ignore[list-item]


def test_every_output_is_compared() -> None:
    found = differences([{"a": LOGITS, "b": -LOGITS}], [{"a": LOGITS, "b": LOGITS}])
    assert found["a"] == 0.0
    assert found["b"] > 1


def test_nudged_moves_floats_alone() -> None:
    x = np.float32([1, -4, 0])
    moved = nudged(x, 2.0**-20)
    assert moved.dtype == np.float32
    assert moved[0] - x[0] == 2.0**-20
    for kind in (np.int32, np.uint8, np.bool_):
        values = np.asarray([0, 1, 100], kind)
        assert nudged(values, 2.0**-20) is values


def test_other_labels_are_the_share_of_other_largest_values() -> None:
    turned = LOGITS.copy()
    turned[:2] *= -1
    assert other_labels([LOGITS], [LOGITS]) == 0
    assert other_labels([turned], [LOGITS]) == pytest.approx(2 / 6)
    assert other_labels([LOGITS[:, :9]], [LOGITS]) == 1


@pytest.mark.parametrize("shape", [(4, 1), (4,), (4, 8, 8, 3)])
def test_outputs_without_classes_have_no_labels(shape: tuple[int, ...]) -> None:
    answers = RANDOM.standard_normal(shape)
    assert other_labels([-answers], [answers]) is None
    assert other_labels([np.ones((4, 5), int)], [np.zeros((4, 5), int)]) is None
