"""What ``calibrate`` takes, and its ranges, as on the Keras side.

Both see the same data.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import qat_lib
from qat_lib.errors import CalibrationError
from qat_lib.torch import nn as quant_nn
from qat_lib.torch.calibration import calibrate
from qat_lib.torch.tensor_quant import QuantDescriptor
from qat_lib.torch.tensor_quantizer import TensorQuantizer

VALUES = np.arange(1, 15, dtype=np.float32).reshape(7, 2)


def hand_made(**options: Any) -> TensorQuantizer:
    """A quantizer alone on its input."""
    return TensorQuantizer(QuantDescriptor(name="q", **options))


class Two(nn.Module):
    """A quantizer on each of two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.qa, self.qb = TensorQuantizer(), TensorQuantizer()

    def forward(self, a: torch.Tensor, b: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return self.qa(a) + scale * self.qb(b)


def test_calibrate_has_defaults_of_keras_side() -> None:
    assert calibrate.__kwdefaults__ == qat_lib.calibrate.__kwdefaults__
    assert calibrate.__defaults__ == qat_lib.calibrate.__defaults__


@pytest.mark.parametrize("method", ["max", "percentile", "entropy", "mse"])
@pytest.mark.parametrize("options", [{}, {"unsigned": True}, {"num_bits": 4}], ids=str)
def test_ranges_are_those_of_the_keras_side(method: str, options: dict[str, Any]) -> None:
    data = np.random.default_rng(9).normal(size=(70, 9, 6)).astype(np.float32) ** 3
    x = keras.Input((9, 6))
    model = keras.Model(x, qat_lib.TensorQuantizer(name="q", **options)(x))
    expected = qat_lib.calibrate(model, data, method, percentile=99.5).tensors["q"]
    quantizer = hand_made(**options)
    found = calibrate(quantizer, data, method, percentile=99.5).tensors["q"]
    np.testing.assert_array_equal(found.counts, expected.counts)
    np.testing.assert_array_equal(found.edges, expected.edges)
    assert (found.amax, found.observed_max) == (expected.amax, expected.observed_max)
    assert (found.method, found.values) == (expected.method, expected.values)
    assert quantizer.amax.item() == found.amax
    assert quantizer.calibrated
    assert quantizer.frozen


def kinds() -> dict[str, Any]:
    """Return the same seven samples in every form.

    Batches have 3, 3 and 1 samples.
    """
    parts, labels = [VALUES[:3], VALUES[3:6], VALUES[6:]], np.full((7, 1), 99, np.float32)
    tensors = [torch.from_numpy(part) for part in parts]
    pairs = TensorDataset(torch.from_numpy(VALUES), torch.from_numpy(labels))
    return {
        "array": VALUES,
        "tensor": torch.from_numpy(VALUES),
        "list": parts,
        "tensors": tensors,
        "iterator": iter(parts),
        "pairs": [(part, labels[:3]) for part in tensors],
        "loader": DataLoader(TensorDataset(torch.from_numpy(VALUES)), batch_size=3),
        "loader of pairs": DataLoader(pairs, batch_size=3),
    }


@pytest.mark.parametrize("kind", list(kinds()))
def test_calibrate_takes_data_of_every_kind(kind: str) -> None:
    seen: list[int] = []
    report = calibrate(hand_made(), kinds()[kind], "max", batch_size=3, on_batch=seen.append)
    assert (seen, report.batches, report.samples) == ([1, 2, 3], 3, 7)
    assert (report.tensors["q"].amax, report.tensors["q"].values) == (14.0, 14)


@pytest.mark.parametrize("form", [dict, list, tuple])
@pytest.mark.parametrize("kind", ["whole", "batches", "pairs"])
def test_calibrate_takes_data_of_several_inputs(form: Any, kind: str) -> None:
    parts = [{"a": VALUES[i : i + 4], "b": -2 * VALUES[i : i + 4]} for i in (0, 4)]
    shaped = [part if form is dict else form(part.values()) for part in parts]
    whole = {"a": VALUES, "b": -2 * VALUES}
    data = {"whole": whole if form is dict else form(whole.values()), "batches": shaped}
    given = data[kind] if kind in data else [(part, np.zeros((4, 1))) for part in shaped]
    report = calibrate(Two(), given, "max", batch_size=4)
    assert {name: found.amax for name, found in report.tensors.items()} == {"qa": 14.0, "qb": 28.0}
    assert (report.batches, report.samples) == (2, 7)


def test_calibrate_runs_inference_and_restores_modes() -> None:
    dropout, quantizer = nn.Dropout(0.5), hand_made()
    model = nn.Sequential(dropout, quantizer, nn.BatchNorm1d(2).eval())
    report = calibrate(model, np.ones((64, 2), np.float32), "max")
    assert report.tensors["q"].values == report.tensors["q"].counts[-1] == 128
    assert [module.training for module in model] == [True, True, False]


def test_calibrate_sets_weights_from_the_weights() -> None:
    linear = quant_nn.QuantLinear(2, 3)
    report = calibrate(linear, VALUES, "max")
    assert list(report.tensors) == ["_input_quantizer"]
    expected = linear.weight.detach().abs().amax(1, keepdim=True)
    torch.testing.assert_close(linear.weight_quantizer._amax, expected, rtol=0, atol=0)


def test_calibrate_sees_the_float_tensors() -> None:
    first = TensorQuantizer(QuantDescriptor(amax=0.5, name="first"))
    report = calibrate(nn.Sequential(first, hand_made()), VALUES, "max")
    assert {name: found.amax for name, found in report.tensors.items()} == {
        "first": 14.0,
        "q": 14.0,
    }


def test_calibrate_gives_a_shared_quantizer_one_histogram() -> None:
    model = Two()
    model.qb = model.qa
    found = calibrate(model, [(VALUES, 3 * VALUES)], "max").tensors["qa"]
    assert (found.amax, found.values) == (42.0, 28)


def test_calibrate_uses_the_calibrator_of_a_quantizer() -> None:
    found = calibrate(hand_made(calibrator="max"), VALUES, percentile=10).tensors["q"]
    assert (found.method, found.amax) == ("max", 14.0)


def test_calibrate_multiplies_by_scale_amax() -> None:
    quantizer = hand_made(scale_amax=0.5)
    assert calibrate(quantizer, VALUES, "max").tensors["q"].amax == 7.0
    assert quantizer.amax.item() == 7.0


def test_calibrate_freezes_where_asked() -> None:
    quantizer = hand_made(range_policy="ema")
    calibrate(quantizer, VALUES, "max", freeze=False)
    assert not quantizer.frozen
    calibrate(quantizer, VALUES, "max")
    assert quantizer.frozen


def test_calibrate_moves_a_learned_step() -> None:
    quantizer = hand_made(learn_amax=True)
    step = quantizer._step
    calibrate(quantizer, VALUES, "max")
    assert quantizer._step is step
    assert quantizer.amax.item() == pytest.approx(14.0)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_calibrate_refuses_non_finite_values(bad: float) -> None:
    quantizer, data = hand_made(), VALUES.copy()
    data[6, 1] = bad
    with pytest.raises(CalibrationError, match="'q' has NaN or infinite"):
        calibrate(quantizer, data, "max", batch_size=2)
    assert quantizer.amax is None


@pytest.mark.parametrize(("least", "warns"), [(-0.5, True), (0.0, False)])
def test_calibrate_warns_of_negative_values(
    caplog: pytest.LogCaptureFixture, least: float, warns: bool
) -> None:
    calibrate(hand_made(unsigned=True), np.float32([[least, 2.0]]), "max")
    assert ("turn into 0: 1 of them, such as q." in caplog.text) is warns


@pytest.mark.parametrize(
    "data", [[], np.zeros((0, 2), np.float32), iter(()), [np.zeros((0, 2), np.float32)]]
)
def test_calibrate_needs_a_sample(data: Any) -> None:
    with pytest.raises(CalibrationError, match="data is empty"):
        calibrate(hand_made(), data)


def test_calibrate_passes_over_an_empty_batch() -> None:
    report = calibrate(hand_made(), [VALUES, VALUES[:0], -VALUES], "max")
    assert (report.batches, report.samples, report.tensors["q"].amax) == (3, 14, 14.0)


def test_calibrate_refuses_a_model_without_quantizers() -> None:
    with pytest.raises(CalibrationError, match="The model 'Linear' has no quantizer"):
        calibrate(nn.Linear(2, 2), VALUES)


def test_calibrate_stops_observing_when_data_fail() -> None:
    def fails() -> Any:
        yield VALUES
        raise OSError("disk")

    quantizer = hand_made()
    with pytest.raises(OSError, match="disk"):
        calibrate(quantizer, fails())
    quantizer.amax = 6.0
    assert quantizer(torch.tensor([100.0])).item() == pytest.approx(6.0)
    assert quantizer.training
