"""What ``quantize_model`` returns: weights kept, compiled as the original, free of it."""

import logging

import keras
import numpy as np
import pytest
from keras import layers

from qat_lib import quantize_model


def net() -> keras.Model:
    keras.utils.set_random_seed(0)
    x = keras.Input((6, 6, 2), name="x")
    y = layers.BatchNormalization(name="bn")(layers.Conv2D(3, 3, name="conv")(x))
    y = layers.Dropout(0.5, seed=3)(layers.Flatten()(y))
    return keras.Model(x, layers.Dense(2, name="head")(y), name="net")


def test_name_and_weights_are_kept() -> None:
    model = net()
    for variable in model.weights:
        if "float" in variable.dtype:
            variable.assign(np.random.default_rng(1).random(variable.shape) + 0.5)
    quantized = quantize_model(model)
    assert quantized.name == "net"
    of_quantized = {v.path: v.numpy() for v in quantized.weights}
    for variable in model.weights:
        np.testing.assert_array_equal(of_quantized[variable.path], variable.numpy())
    assert len(quantized.trainable_variables) == len(model.trainable_variables)


def test_the_copy_shares_nothing_with_the_original() -> None:
    model = net()
    quantized = quantize_model(model)
    assert not {id(v) for v in model.variables} & {id(v) for v in quantized.variables}
    assert not {id(layer) for layer in model.layers} & {id(layer) for layer in quantized.layers}


def test_dropout_draws_what_the_original_would_have_drawn() -> None:
    model = net()
    quantized = quantize_model(model)
    for layer in quantized._flatten_layers():
        if hasattr(layer, "disable"):
            layer.disable()
    x = np.ones((4, 6, 6, 2), np.float32)
    np.testing.assert_array_equal(model(x, training=True), quantized(x, training=True))


def test_a_compiled_model_gives_a_compiled_copy() -> None:
    model = net()
    model.compile(keras.optimizers.SGD(0.125, momentum=0.5), "mse", metrics=["mae"])
    quantized = quantize_model(model)
    assert quantized.optimizer is not model.optimizer
    assert isinstance(quantized.optimizer, keras.optimizers.SGD)
    assert float(quantized.optimizer.learning_rate) == 0.125
    history = quantized.fit(np.ones((4, 6, 6, 2)), np.zeros((4, 2)), verbose=0).history
    assert set(history) == {"loss", "mae"}
    quantized.compile("adam", "mae")
    assert isinstance(quantized.optimizer, keras.optimizers.Adam)


def test_a_model_that_is_not_compiled_gives_one_that_is_not() -> None:
    assert not quantize_model(net()).compiled


def test_a_loss_that_can_not_be_copied_leaves_the_copy_uncompiled(caplog: pytest.LogCaptureFixture) -> None:
    model = net()
    model.compile("sgd", lambda true, predicted: keras.ops.mean(predicted))
    with caplog.at_level(logging.INFO, logger="qat_lib"):
        quantized = quantize_model(model)
    assert not quantized.compiled
    assert "not compiled" in caplog.text
    quantized.compile("sgd", "mse")
    quantized.fit(np.ones((4, 6, 6, 2)), np.zeros((4, 2)), verbose=0)
