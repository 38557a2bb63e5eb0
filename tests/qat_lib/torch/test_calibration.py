"""What ``calibrate`` takes, and its ranges, as on the Keras side.

Both see the same data.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import torch
from keras import layers
from torch import nn

import qat_lib
import qat_lib.torch
from qat_lib.errors import CalibrationError
from qat_lib.keras.calibration.calibrate import keras_gains
from qat_lib.torch import nn as quant_nn
from qat_lib.torch.calibration import calibrate, module_gains
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


def twins() -> tuple[keras.Model, nn.Module]:
    """Return one network in both frameworks, quantized."""
    rng = np.random.default_rng(4)
    full = rng.normal(size=(3, 3, 4, 6)).astype(np.float32)
    apart = rng.normal(size=(3, 3, 6, 1)).astype(np.float32)
    last = rng.normal(size=(6, 5)).astype(np.float32)
    factors, variances = rng.uniform(0.2, 3, (2, 6)).astype(np.float32)

    x = inputs = keras.Input((8, 8, 4), name="image")
    x = layers.Conv2D(6, 3, use_bias=False, name="conv")(x)
    x = layers.BatchNormalization(epsilon=1e-5, name="norm")(x)
    x = layers.DepthwiseConv2D(3, use_bias=False, name="apart")(layers.ReLU(name="relu")(x))
    x = layers.GlobalAveragePooling2D(name="pool")(x)
    model = keras.Model(inputs, layers.Dense(5, use_bias=False, name="last")(x))
    zeros = np.zeros(6, np.float32)
    model.get_layer("conv").set_weights([full])
    model.get_layer("norm").set_weights([factors, zeros, zeros, variances])
    model.get_layer("apart").set_weights([apart])
    model.get_layer("last").set_weights([last])

    norm = nn.BatchNorm2d(6)
    module = nn.Sequential(
        nn.Conv2d(4, 6, 3, bias=False),
        norm,
        nn.ReLU(),
        nn.Conv2d(6, 6, 3, groups=6, bias=False),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(6, 5, bias=False),
    ).eval()
    with torch.no_grad():
        norm.weight.copy_(torch.from_numpy(factors))
        norm.running_var.copy_(torch.from_numpy(variances))
        for index, value in ((0, full.transpose(3, 2, 0, 1)), (3, apart.transpose(2, 3, 0, 1))):
            module[index].weight.copy_(torch.from_numpy(value))
        module[6].weight.copy_(torch.from_numpy(last.T))
    return (
        qat_lib.quantize_model(model, custom_qdq_cases="auto"),
        qat_lib.torch.quantize_model(
            module, custom_qdq_cases="auto", example_input=torch.zeros(1, 4, 8, 8)
        ),
    )


def test_gains_are_those_of_keras() -> None:
    model, module = twins()
    expected, found = list(keras_gains(model).values()), list(module_gains(module).values())
    assert len(found) == len(expected) == 3
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4)


@pytest.mark.parametrize("count", [16, 130])
def test_default_ranges_are_those_of_keras(count: int) -> None:
    model, module = twins()
    images = np.random.default_rng(5).normal(size=(count, 8, 8, 4)).astype(np.float32)
    images *= np.array([0.1, 1, 2, 9], np.float32)
    expected = qat_lib.calibrate(model, images).tensors
    found = qat_lib.torch.calibrate(module, images.transpose(0, 3, 1, 2).copy()).tensors
    ranges = [sorted(tensor.amax for tensor in side.values()) for side in (expected, found)]
    assert len(ranges[0]) == 4
    np.testing.assert_allclose(ranges[0], ranges[1], rtol=1e-3)


def test_a_module_that_cannot_be_traced_has_no_gains() -> None:
    class Own(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if x.sum() > 0 else -x

    assert module_gains(Own()) == {}
