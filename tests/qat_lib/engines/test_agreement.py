"""Accepted differences of engines, for each precision."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from qat_lib.engines.agreement import (
    ComparedAnswers,
    Noise,
    bound_of,
    dithered,
    judge_outputs,
    measure_noise,
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
    noise = {"y": Noise(size=own)}
    (found,) = judge_outputs(noisy(engine, 1), noisy(0, 0), 0.02, lambda: noise).values()
    assert found.agrees is agrees
    assert found.bound == pytest.approx(max(0.02, min(1.5 * own, 0.5)))


@pytest.mark.parametrize(("systematic", "agrees"), [(0.009, True), (0.011, False)])
def test_compare_refuses_systematic_differences(systematic: float, agrees: bool) -> None:
    noise = {"y": Noise(size=0.1, systematic=systematic)}
    (found,) = judge_outputs(noisy(0.1, 1), noisy(0, 0), 0.02, lambda: noise).values()
    assert found.agrees is agrees
    assert found.averaged


def test_compare_ignores_noise_of_quiet_outputs() -> None:
    quiet, loud = noisy(0.01, 1), noisy(0.05, 1)
    answers = [{"y": one["y"], "z": two["y"]} for one, two in zip(quiet, loud, strict=True)]
    truth = [{"y": each["y"], "z": each["y"]} for each in noisy(0, 0)]
    noise = {name: Noise(size=0.05, systematic=0.015) for name in "yz"}
    found = judge_outputs(answers, truth, 0.02, lambda: noise)
    assert found["y"].agrees
    assert not found["z"].agrees


class Rounding:
    """Reference and engine that round differently for every input."""

    def __init__(self, size: float, shift: float = 0.0) -> None:
        self.size, self.shift, self.asked = size, shift, list[int]()

    def run(self, request: Mapping[str, Any], seed: int = 0) -> dict[str, Any]:
        x = request["x"]
        random = np.random.default_rng([seed, *x.astype(np.float32).tobytes()[:64]])
        return {"y": x + self.size * random.standard_normal(x.shape)}

    def infer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        self.asked.append(len(request["x"]))
        return {"y": self.run(request, 1)["y"] + self.shift * np.sin(np.arange(10))}

    def noise(self, sizes: tuple[int, ...] = (8, 8)) -> Noise:
        random = np.random.default_rng(3)
        requests = [{"x": random.standard_normal((size, 10))} for size in sizes]
        return measure_noise(self.run, self.infer, requests, list(map(self.run, requests)))["y"]


@pytest.mark.parametrize("size", [0.03, 0.3])
def test_rounding_has_no_systematic_difference(size: float) -> None:
    found = Rounding(size).noise()
    assert found.size == pytest.approx(math.sqrt(2) * size, rel=0.15)
    assert found.systematic < 0.1 * size


@pytest.mark.parametrize("shift", [0.1, 0.2])
def test_systematic_difference_shows_through_noise(shift: float) -> None:
    found = Rounding(0.1, shift).noise()
    # Without what chance explains: a lower limit.
    assert 0.7 < found.systematic / (shift / math.sqrt(2)) < 1.05


def test_noise_takes_small_requests_and_few_copies_of_large_ones() -> None:
    rounding = Rounding(0.1)
    rounding.noise((64, 1, 8, 8, 32))
    assert rounding.asked == [1, 8] * 16
    rounding = Rounding(0.1)
    rounding.noise((100,))
    assert rounding.asked == [100] * 4


def test_noise_of_changing_shapes_is_unbounded() -> None:
    def run(request: Mapping[str, Any]) -> dict[str, Any]:
        x = request["x"]
        return {"y": x[x > 0], "z": (x > 0).astype(int)}

    request = {"x": np.random.default_rng(0).standard_normal((16, 10)) / 100}
    request["x"][0, 0] = 1.0
    found = measure_noise(lambda r: run({"x": r["x"] - 1e-3}), run, [request], [run(request)])
    assert found["y"] == Noise(size=float("inf"))
    assert found["z"].systematic == 0


def test_infinities_have_no_systematic_difference() -> None:
    def run(request: Mapping[str, Any]) -> dict[str, Any]:
        return {"y": np.where(request["x"] > 0, np.inf, request["x"])}

    request = {"x": np.random.default_rng(0).standard_normal((16, 10))}
    assert measure_noise(run, run, [request], [run(request)])["y"].systematic == 0


def test_dither_moves_floats_alone() -> None:
    random = np.random.default_rng(0)
    x = np.asarray([1, -4, 0], np.float32)
    moved = dithered(x, random)
    assert moved.dtype == np.float32
    assert moved[2] == 0
    assert 0 < abs(moved[0] - 1) <= 2.0**-7
    assert 0 < abs(moved[1] + 4) <= 2.0**-5
    for kind in (np.int32, np.uint8, np.bool_):
        values = np.asarray([0, 1, 100], kind)
        assert dithered(values, random) is values


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
        moved=lambda request: {"y": noise},
        infer=lambda request: {"y": answers},
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


@pytest.mark.parametrize(("size", "agrees"), [(0.05, True), (0.2, False)])
def test_noise_of_integers_is_that_of_lookup_tables(size: float, agrees: bool) -> None:
    random = np.random.default_rng(0)
    truth = random.standard_normal((64, 10))
    near = {"y": truth + 0.05 * random.standard_normal(truth.shape)}
    answers = {"y": truth + size * random.standard_normal(truth.shape)}
    compared = ComparedAnswers(
        manifest=SimpleNamespace(quantized=True, spec={"float_precision": "fp32"}),  # type: ignore[arg-type]
        half=False,
        run=lambda request: {"y": truth},
        moved=lambda request: near,
        infer=lambda request: answers,
        requests=[{"x": np.arange(64)}],
        answers=[answers],
        expected=[{"y": truth}],
    )
    found = compared.outputs["y"]
    assert found.bound == pytest.approx(1.5 * 0.05, rel=0.1)
    assert found.agrees is agrees


@pytest.mark.parametrize(("precision", "gain", "agrees"), [
    ("fp32", 500.0, True), ("fp32", 50.0, False), ("bf16", 500.0, False),
])  # fmt: skip
def test_noise_of_float_engines_is_that_of_a_tiny_change(
    precision: str, gain: float, agrees: bool
) -> None:
    def run(request: Mapping[str, Any]) -> dict[str, Any]:
        return {"y": np.sin(gain * 1e2 * request["x"])}

    request = {"x": np.random.default_rng(0).standard_normal((64, 10)).astype(np.float32)}
    truth = run(request)
    answers = {"y": truth["y"] + 0.2 * np.random.default_rng(1).standard_normal((64, 10))}
    compared = ComparedAnswers(
        manifest=SimpleNamespace(  # type: ignore[arg-type]
            quantized=False, spec={"float_precision": precision}, backend="openvino"
        ),
        half=False,
        run=run,
        moved=run,
        infer=run,
        requests=[request],
        answers=[answers],
        expected=[truth],
    )
    found = compared.outputs["y"]
    assert found.agrees is agrees
    assert not found.averaged


def test_labels_of_float_engines_have_no_noise() -> None:
    assert not compare_labels(8, 4, quantized=False).agrees
