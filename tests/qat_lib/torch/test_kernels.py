"""Gains of PyTorch modules, as of the same network in Keras."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import torch
from keras import layers
from torch import nn

import qat_lib
import qat_lib.torch
from qat_lib.keras.calibration.kernels import keras_gains
from qat_lib.torch.kernels import module_gains


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
