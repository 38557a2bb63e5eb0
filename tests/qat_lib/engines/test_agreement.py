"""Accepted differences of engines, for each precision."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from qat_lib.engines.agreement import (
    ComparedAnswers,
    bound_of,
    judge_outputs,
)


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
