"""Gradients reach the variables of a quantized model that they reach in float."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import qat_lib

layers = keras.layers


def plain(dtype: str = "float32") -> Any:
    policy = {"dtype": keras.DTypePolicy(dtype)}
    x = keras.Input((8, 8, 3))
    y = layers.Conv2D(8, 3, use_bias=False, **policy)(x)
    y = layers.ReLU(**policy)(layers.BatchNormalization(**policy)(y))
    y = layers.GlobalAveragePooling2D(**policy)(layers.Conv2D(8, 3, **policy)(y))
    return keras.Model(x, layers.Dense(3, **policy)(y))


def attention_gate() -> Any:
    x = keras.Input((16, 16, 3))
    fine = layers.Conv2D(8, 3, padding="same", activation="relu")(x)
    coarse = layers.Conv2D(8, 3, strides=2, padding="same", activation="relu")(fine)
    down = layers.Conv2D(4, 2, strides=2)(fine)
    gate = layers.Activation("relu")(layers.Add()([layers.Conv2D(4, 1)(coarse), down]))
    gate = layers.UpSampling2D()(layers.Conv2D(1, 1, activation="sigmoid")(gate))
    kept = layers.Multiply()([fine, gate])
    y = layers.Concatenate()([kept, layers.UpSampling2D()(coarse)])
    return keras.Model(x, layers.Conv2D(2, 1)(y))


def masked_sequence() -> Any:
    x = keras.Input((6,), dtype="int32")
    y = layers.Embedding(10, 8, mask_zero=True)(x)
    y = layers.LSTM(8, return_sequences=True)(layers.Dense(8)(y))
    return keras.Model(x, layers.Dense(3)(layers.GRU(8)(layers.Dense(8)(y))))


def activations() -> Any:
    x = y = keras.Input((8, 8, 4))
    for name in ("elu", "gelu", "silu", "softplus", "tanh", "sigmoid", "mish", "hard_silu", "selu"):
        y = layers.Activation(name)(layers.Conv2D(4, 1)(y))
    return keras.Model(x, layers.Conv2D(2, 1)(layers.PReLU()(y)))


def reached(model: Any, data: np.ndarray) -> set[int]:
    """Return the numbers of the trainable weights with a gradient other than zero."""
    with tf.GradientTape() as tape:
        output = tf.cast(model(data, training=True), tf.float32)
        target = np.random.default_rng(1).normal(size=output.shape).astype("float32")
        loss = tf.reduce_mean((output - target) ** 2)
    gradients = tape.gradient(loss, model.trainable_variables)
    values = [g if g is None else tf.cast(tf.convert_to_tensor(g), tf.float32) for g in gradients]
    assert all(value is None or np.all(np.isfinite(value)) for value in values)
    return {i for i, g in enumerate(values) if g is not None and np.any(g)}


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(plain, id="float32"),
        pytest.param(lambda: plain("mixed_bfloat16"), id="bfloat16"),
        pytest.param(lambda: plain("mixed_float16"), id="float16"),
        pytest.param(attention_gate, id="attention gate"),
        pytest.param(masked_sequence, id="masked sequence"),
        pytest.param(activations, id="activations"),
    ],
)
def test_gradients_reach_as_in_float(model: Any) -> None:
    keras.utils.set_random_seed(2)
    network = model()
    rng = np.random.default_rng(0)
    if network.input_shape == (None, 6):
        data = rng.integers(0, 10, (8, 6))
    else:
        data = rng.normal(size=(8, *network.input_shape[1:])).astype("float32")
    quantized = qat_lib.quantize_model(network, custom_qdq_cases="auto")
    qat_lib.calibrate(quantized, [data])
    expected = reached(network, data)
    assert len(expected) == len(network.trainable_variables)
    assert reached(quantized, data) == expected
