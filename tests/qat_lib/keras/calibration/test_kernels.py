"""Gains of Keras models against the noise that outputs really show."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import qat_lib
from qat_lib.keras.calibration.kernels import keras_gains
from qat_lib.keras.calibration.observing import TensorHistograms

FAR, NEAR = 100.0, 1.0


def data(count: int = 20) -> np.ndarray:
    """Return inputs whose second channel reaches 100 times as far as the first."""
    values = np.random.default_rng(0).uniform(-1, 1, (count, 6, 6, 2))
    return (values * (NEAR, FAR)).astype(np.float32)


def noise_gains(model: Any, channels: int) -> np.ndarray:
    """Return the power of the outputs, in the middle, for noise in each channel."""
    rng = np.random.default_rng(1)
    found = []
    for channel in range(channels):
        x = np.zeros((400, 7, 7, channels), np.float32)
        x[..., channel] = rng.normal(size=x.shape[:3])
        found.append(np.mean(model(x).numpy()[:, 2:5, 2:5] ** 2))
    return np.asarray(found) / np.mean(found)


def quantized(*stack: Any, channels: int = 4) -> tuple[Any, Any]:
    """Return a model of layers in a row and its quantized form."""
    x = inputs = keras.Input((7, 7, channels), name="image")
    for layer in stack:
        x = layer(x)
    model = keras.Model(inputs, x)
    rng = np.random.default_rng(2)
    for variable in model.weights:
        if variable.name in ("kernel", "gamma", "moving_variance"):
            variable.assign(rng.uniform(0.2, 2.0, variable.shape))
    return model, qat_lib.quantize_model(model)


STACKS = {
    "convolution": [layers.Conv2D(3, 3, padding="same", use_bias=False)],
    "groups": [layers.Conv2D(6, 3, padding="same", groups=2, use_bias=False)],
    "depthwise": [layers.DepthwiseConv2D(3, padding="same", depth_multiplier=2, use_bias=False)],
    "dense": [layers.Dense(5, use_bias=False)],
    "normalized": [layers.Conv2D(3, 1, use_bias=False), layers.BatchNormalization()],
    "depthwise, normalized": [
        layers.DepthwiseConv2D(3, padding="same", use_bias=False),
        layers.BatchNormalization(scale=False),
    ],
    "padded": [layers.ZeroPadding2D(1), layers.Conv2D(3, 3, use_bias=False)],
}


@pytest.mark.parametrize("name", STACKS)
def test_gains_are_those_of_noise(name: str) -> None:
    stack = [type(layer).from_config(layer.get_config()) for layer in STACKS[name]]
    model, with_quantizers = quantized(*stack)
    (found,) = keras_gains(with_quantizers).values()
    np.testing.assert_allclose(found, noise_gains(model, 4), rtol=0.1)
    assert np.ptp(found) > 0.2


def two_readers() -> Any:
    x = keras.Input((6, 6, 2), name="image")
    conv = layers.Conv2D(1, 1, use_bias=False, name="conv")
    model = keras.Model(x, [conv(x), layers.Add(name="add")([x, x])])
    conv.set_weights([np.array([0.0, 5.0], np.float32).reshape(1, 1, 2, 1)])
    return qat_lib.quantize_model(model, "full", qat_lib.QuantizationSpec().add("add"))


def test_gains_of_several_readers_add_up() -> None:
    ((_, found),) = keras_gains(two_readers()).items()
    # The convolution reads the second channel alone; the addition reads both twice.
    np.testing.assert_allclose(found, [2.0, 4.0])


def test_a_tensor_without_weighted_readers_has_no_gains() -> None:
    a, b = keras.Input((6, 6, 2), name="a"), keras.Input((6, 6, 2), name="b")
    model = keras.Model([a, b], layers.Add(name="add")([a, b]))
    spec = qat_lib.QuantizationSpec().add("add")
    assert keras_gains(qat_lib.quantize_model(model, "partial", spec)) == {}


def test_a_model_without_a_graph_has_no_gains() -> None:
    class Own(keras.Model):
        def call(self, x: Any) -> Any:
            return x

    assert keras_gains(Own()) == {}


def model_reading(channel: int, *, pad: bool = False) -> Any:
    """Return a quantized convolution that computes with one channel of two."""
    x = inputs = keras.Input((6, 6, 2), name="image")
    x = layers.ZeroPadding2D(1, name="pad")(x) if pad else x
    conv = layers.Conv2D(1, 1, use_bias=False, name="conv")
    model = keras.Model(inputs, conv(x))
    conv.set_weights([np.eye(2, dtype=np.float32)[channel].reshape(1, 1, 2, 1)])
    return qat_lib.quantize_model(model)


@pytest.mark.parametrize("pad", [False, True])
@pytest.mark.parametrize(("channel", "reach"), [(0, NEAR), (1, FAR)])
def test_the_default_range_follows_what_the_reader_computes_with(
    channel: int, reach: float, pad: bool
) -> None:
    report = qat_lib.calibrate(model_reading(channel, pad=pad), data())
    (statistics,) = report.tensors.values()
    assert statistics.method == "auto"
    assert statistics.amax == pytest.approx(reach, rel=0.1)


def test_auto_of_one_quantizer_leaves_the_others_to_the_method() -> None:
    x = keras.Input((6, 6, 2), name="image")
    y = layers.Conv2D(2, 1, name="first")(x)
    model = keras.Model(x, layers.Conv2D(2, 1, name="second")(y))
    spec = qat_lib.QuantizationSpec().add("second", calibrator="auto")
    report = qat_lib.calibrate(qat_lib.quantize_model(model, "full", spec), data(), "max")
    assert [tensor.method for tensor in report.tensors.values()] == ["max", "auto"]


def test_gains_of_other_channels_count_alike() -> None:
    quantizer = qat_lib.TensorQuantizer(name="q")
    histograms = TensorHistograms({"q": np.array([9.0, 1.0])})
    for width in (2, 3):
        histograms.observe(quantizer, tf.ones((5, width)))
    costs = histograms.found["q"].costs
    assert costs is not None
    assert costs[-1] == 5 * (9 + 1) + 5 * 3
