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


def test_calibrate_runs_inference_and_restores_modes() -> None:
    dropout, quantizer = nn.Dropout(0.5), hand_made()
    model = nn.Sequential(dropout, quantizer, nn.BatchNorm1d(2).eval())
    report = calibrate(model, np.ones((64, 2), np.float32), "max")
    assert report.tensors["q"].values == report.tensors["q"].counts[-1] == 128
    assert [module.training for module in model] == [True, True, False]
    with pytest.raises(CalibrationError, match="NaN"):
        calibrate(model, np.full((2, 2), np.nan, np.float32))
    assert [module.training for module in model] == [True, True, False]


def test_calibrate_sets_weights_from_the_weights() -> None:
    linear = quant_nn.QuantLinear(2, 3)
    report = calibrate(linear, VALUES, "max")
    assert list(report.tensors) == ["_input_quantizer"]
    expected = linear.weight.detach().abs().amax(1, keepdim=True)
    torch.testing.assert_close(linear.weight_quantizer._amax, expected, rtol=0, atol=0)


def test_calibrate_multiplies_by_scale_amax() -> None:
    quantizer = hand_made(scale_amax=0.5)
    assert calibrate(quantizer, VALUES, "max").tensors["q"].amax == 7.0
    assert quantizer.amax.item() == 7.0


def test_calibrate_moves_a_learned_step() -> None:
    quantizer = hand_made(learn_amax=True)
    step = quantizer._step
    calibrate(quantizer, VALUES, "max")
    assert quantizer._step is step
    assert quantizer.amax.item() == pytest.approx(14.0)
