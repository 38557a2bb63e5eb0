"""Distance between answers, and the bound for each precision."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from qat_lib.engines.agreement import (
    ComparedAnswers,
    bound_of,
    difference,
    differences,
    judge_outputs,
    nudged,
    other_labels,
)

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


@pytest.mark.parametrize(
    ("facts", "half", "bound"),
    [
        ({}, False, 0.001),
        ({}, True, 0.15),
        ({"spec": {"float_precision": "bf16"}}, False, 0.15),
        ({"backend": "tensorrt"}, False, 0.02),
        ({"quantized": True}, False, 0.02),
        ({"quantized": True}, True, 0.15),
    ],
)
def test_bound_is_what_the_precision_explains(
    facts: dict[str, Any], half: bool, bound: float
) -> None:
    usual = {
        "backend": "openvino",
        "quantized": False,
        "spec": {"float_precision": "fp32"},
        "device": {},
    }
    assert bound_of(SimpleNamespace(**(usual | facts)), half=half) == bound  # type: ignore[arg-type]


def noisy(amount: float, seed: int, samples: int = 64) -> list[dict[str, Any]]:
    """Answers of spread 1 with noise of another spread; two requests."""
    random = np.random.default_rng(7)
    truth = random.standard_normal((samples, 10))
    away = amount * np.random.default_rng(seed).standard_normal(truth.shape)
    return [{"y": part} for part in np.array_split(truth + away, 2)]


def test_compare_asks_for_noise_beyond_the_bound_alone() -> None:
    def refuse() -> Any:
        raise AssertionError

    (found,) = judge_outputs(noisy(0.01, 1), noisy(0, 0), 0.02, refuse).values()
    assert found.agrees
    assert found.bound == 0.02
    (found,) = judge_outputs(noisy(0.05, 1), noisy(0, 0), 0.02).values()
    assert not found.agrees


@pytest.mark.parametrize(
    ("engine", "own", "agrees"),
    [(0.05, 0.05, True), (0.05, 0.01, False), (0.3, 0.15, False), (0.9, 0.9, False)],
)
def test_compare_widens_the_bound_to_the_noise(engine: float, own: float, agrees: bool) -> None:
    truth, moved = noisy(0, 0), noisy(own, 2)
    (found,) = judge_outputs(noisy(engine, 1), truth, 0.02, lambda: moved).values()
    assert found.agrees is agrees
    assert not found.is_shifted
    expected = pytest.approx(max(0.02, min(1.5 * own, 0.5)), rel=0.1)
    assert found.bound == expected


def test_compare_refuses_shifted_means() -> None:
    truth, moved = noisy(0, 0), noisy(0.1, 2)
    shifted = [{"y": part["y"] + 0.06} for part in noisy(0.1, 1)]
    (found,) = judge_outputs(shifted, truth, 0.02, lambda: moved).values()
    assert found.difference < found.bound
    assert found.is_shifted
    assert not found.agrees


def test_nudged_moves_floats_alone() -> None:
    x = np.float32([1, -4, 0])
    assert np.array_equal(nudged(x), x * np.float32(1 + 2.0**-14))
    moved = nudged(x, 2.0**-20)
    assert moved.dtype == np.float32
    assert moved[0] - x[0] == 2.0**-20
    for kind in (np.int32, np.uint8, np.bool_):
        values = np.asarray([0, 1, 100], kind)
        assert nudged(values) is values


def compare_labels(other: int, moved: int, *, quantized: bool = True) -> Any:
    """Compare the labels of 100 samples, of which some differ, and in the moved reference some."""
    truth = np.eye(10)[np.arange(100) % 10]
    answers, noise = truth.copy(), truth.copy()
    answers[:other] = np.roll(truth[:other], 1, axis=1)
    noise[:moved] = np.roll(truth[:moved], 1, axis=1)
    return ComparedAnswers(
        manifest=SimpleNamespace(quantized=quantized),  # type: ignore[arg-type]
        half=False,
        run=lambda request: {"y": noise},
        requests=[{"x": truth}],
        answers=[{"y": answers}],
        expected=[{"y": truth}],
    ).labels("y")


@pytest.mark.parametrize(
    ("other", "moved", "agrees"),
    [(0, 0, True), (2, 0, True), (3, 0, False), (3, 2, True), (8, 4, True), (9, 4, False)],
)
def test_labels_may_differ_as_in_the_moved_reference(other: int, moved: int, agrees: bool) -> None:
    found = compare_labels(other, moved)
    assert found.agrees is agrees
    assert found.other == other / 100


def test_labels_of_float_engines_have_no_noise() -> None:
    assert not compare_labels(8, 4, quantized=False).agrees


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
