"""BiasCorrection: each layer by the error of its own outputs, without any framework."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from qat_lib.lockstep.bias import POSITIONS, BiasCorrection, mean_shift, output_error
from qat_lib.lockstep.steps import BothForms


class Bias:
    """A vector in memory; tensors are ``(positions, channels)`` already."""

    def __init__(self) -> None:
        self.shift = np.zeros(2, np.float32)

    def saved(self) -> Callable[[], None]:
        shift = self.shift
        return lambda: setattr(self, "shift", shift)

    def rows(self, tensor: np.ndarray) -> np.ndarray:
        return tensor

    def subtract(self, shift: np.ndarray) -> None:
        self.shift = self.shift - shift

    def moved(self, tensor: np.ndarray, shift: np.ndarray) -> np.ndarray:
        return tensor - shift


class Biases:
    """Finds the biases given by layer."""

    def __init__(self, layers: dict[str, Bias], normalizations: dict[str, Bias]) -> None:
        self.layers, self.normalizations = layers, normalizations

    def problem(self, call: Any) -> str:
        return "its channels are not the last axis" if call.layer == "odd" else ""

    def of_layer(self, call: Any) -> Bias | None:
        return self.layers.get(call.layer)

    def of_normalization(self, call: Any) -> Bias | None:
        return self.normalizations.get(call.layer)


class Chain:
    """A graph of calls that read one another in a row."""

    def __init__(self, *calls: Any) -> None:
        self.calls = calls
        self.outputs = calls[-1].outputs

    def calls_of(self, layer: str) -> list[Any]:
        return [call for call in self.calls if call.layer == layer]

    def consumers(self, tensor: str) -> list[tuple[Any, int]]:
        place = [call.outputs[0] for call in self.calls].index(tensor) + 1
        return [(call, 0) for call in self.calls[place : place + 1]]


def call(
    layer: str, *, name: str = "", quantized: bool = True, roles: tuple[str, ...] = ("weighted",)
) -> Any:
    existing = SimpleNamespace(weights=("kernel",)) if quantized else None
    traits = SimpleNamespace(existing=existing, roles=roles, own_activation=None)
    name = name or layer
    return SimpleNamespace(name=name, layer=layer, outputs=(f"{name}:0",), traits=traits)


def forms(error: np.ndarray, rows: int = 100) -> BothForms:
    """Return a tensor in both forms, two batches with an error by row or channel."""
    values = np.random.default_rng(0).normal(size=(2, rows, 2)).astype(np.float32)
    return BothForms(float=list(values), quantized=list(values + error.astype(np.float32)))


def corrected(graph: Any, biases: Biases) -> BiasCorrection:
    return BiasCorrection(graph, biases, None)


def test_bias_correction_subtracts_the_mean_error() -> None:
    bias, layer = Bias(), call("conv")
    correction = corrected(Chain(layer), Biases({"conv": bias}, {}))
    pair = forms(np.array([0.5, -0.25]))
    (moved,) = correction.visit(layer, (pair,)) or ()
    np.testing.assert_allclose(bias.shift, [-0.5, 0.25], atol=1e-6)
    np.testing.assert_allclose(moved.quantized, pair.float, atol=1e-6)
    assert correction.corrected == {"conv"}
    assert correction.shifts["conv"] == pytest.approx(0.5, rel=0.2)


def test_bias_correction_leaves_few_large_errors_out() -> None:
    bias, layer = Bias(), call("conv")
    error = np.zeros((100, 2))
    error[:4] = 1000.0
    corrected(Chain(layer), Biases({"conv": bias}, {})).visit(layer, (forms(error),))
    np.testing.assert_allclose(bias.shift, 0, atol=1e-6)


def test_bias_correction_takes_positions_evenly() -> None:
    bias, layer = Bias(), call("conv")
    error = np.linspace(0, 2, POSITIONS)[:, np.newaxis] * np.ones(2)
    corrected(Chain(layer), Biases({"conv": bias}, {})).visit(layer, (forms(error, POSITIONS),))
    np.testing.assert_allclose(bias.shift, -1, atol=0.01)


def test_bias_correction_uses_the_normalization_behind() -> None:
    beta, conv = Bias(), call("conv")
    norm = call("norm", quantized=False, roles=())
    correction = corrected(Chain(conv, norm), Biases({}, {"norm": beta}))
    pair = forms(np.array([1.0, 0.0]))
    assert correction.visit(conv, (pair,)) is None
    assert correction.visit(norm, (pair,)) is not None
    np.testing.assert_allclose(beta.shift, [-1, 0], atol=1e-6)
    assert list(correction.shifts) == ["conv"]


@pytest.mark.parametrize(
    ("calls", "reason"),
    [
        ([call("conv"), call("conv", name="conv@1")], "called more than once"),
        ([call("conv", roles=())], "not known"),
        ([call("odd")], "not the last axis"),
        ([call("bare"), call("relu", quantized=False)], "no bias, nor a BatchNormalization"),
    ],
)
def test_bias_correction_names_what_it_skips(calls: list[Any], reason: str) -> None:
    correction = corrected(Chain(*calls), Biases({"conv": Bias(), "odd": Bias()}, {}))
    assert reason in correction.skipped[calls[0].layer]
    assert not correction.corrected


def test_bias_correction_skips_outputs_that_are_not_finite() -> None:
    bias, layer = Bias(), call("conv")
    correction = corrected(Chain(layer), Biases({"conv": bias}, {}))
    assert correction.visit(layer, (forms(np.array([np.nan, 0.0])),)) is None
    assert correction.skipped["conv"] == "its outputs are not finite"
    assert not bias.shift.any()


def test_bias_correction_tells_of_its_progress() -> None:
    seen: list[tuple[int, int]] = []
    first, second = call("first"), call("second")
    graph: Any = Chain(first, second)
    biases = Biases({"first": Bias(), "second": Bias()}, {})
    correction = BiasCorrection(graph, biases, lambda done, total: seen.append((done, total)))
    for layer in (first, second):
        correction.visit(layer, (forms(np.array([1.0, 1.0])),))
    assert seen == [(1, 2), (2, 2)]
    assert correction.report([np.zeros((5, 2)), np.zeros((3, 2))]).samples == 8


@pytest.mark.parametrize(("after", "kept"), [(0.1, True), (0.2, True), (0.3, False)])
def test_bias_correction_is_taken_back_where_outputs_get_worse(after: float, kept: bool) -> None:
    bias, conv = Bias(), call("conv")
    correction = corrected(Chain(conv), Biases({"conv": bias}, {}))
    one, errors = np.ones((1, 1)), iter([0.2, after])

    def run_model(visit: Any, form: str) -> list[BothForms]:
        visit(conv, (forms(np.full(2, 0.5)),))
        answer = one + np.sqrt(next(errors))
        # The run without corrections computes no float form.
        return [BothForms(float=[answer if form == "quantized" else one], quantized=[answer])]

    correction.run(run_model, np.asarray)
    np.testing.assert_allclose(bias.shift, -0.5 if kept else 0.0, atol=1e-6)
    report = correction.report([np.zeros((4, 2))])
    assert set(report.shifts) == ({"conv"} if kept else set())
    assert ("from 0.2 to 0.3" in report.skipped.get("conv", "")) is not kept
    assert ("conv" in correction.corrected) is kept


def test_output_error_is_relative_and_adds_outputs() -> None:
    ones, twos = np.ones((2, 3), np.float32), np.full((2, 3), 2.0, np.float32)
    pairs = [
        BothForms(float=[ones, ones], quantized=[twos, ones]),
        BothForms(float=[twos], quantized=[ones]),
    ]
    assert output_error(pairs, np.asarray) == pytest.approx(0.5 + 0.25)


def test_mean_shift_lowers_the_outputs_of_a_normalization() -> None:
    gamma, mean = np.array([2.0, -0.5, 0.0]), np.array([1.0, 2.0, 3.0])
    variance, shift = np.array([4.0, 0.25, 1.0]), np.array([0.3, -0.2, 0.1])
    slope = gamma / np.sqrt(variance + 1e-3)
    moved = mean + mean_shift(shift, gamma, variance, 1e-3)
    lowered = slope * (5.0 - mean) - slope * (5.0 - moved)
    np.testing.assert_allclose(lowered, [0.3, -0.2, 0.0])
    assert moved[2] == 3.0
