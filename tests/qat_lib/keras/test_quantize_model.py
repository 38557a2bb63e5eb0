"""What ``quantize_model`` returns: weights kept, compiled as the original, free of it."""

import inspect
import logging
import sys
from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from qat_lib import load_model, model_quantizers, quantize_model
from qat_lib.errors import UnsupportedModelError


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


def test_dropout_draws_what_original_would_have_drawn() -> None:
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


def test_uncompiled_model_stays_uncompiled() -> None:
    assert not quantize_model(net()).compiled


def test_uncopyable_loss_leaves_copy_uncompiled(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = net()
    model.compile("sgd", lambda true, predicted: keras.ops.mean(predicted))
    with caplog.at_level(logging.INFO, logger="qat_lib"):
        quantized = quantize_model(model)
    assert not quantized.compiled
    assert "not compiled" in caplog.text
    quantized.compile("sgd", "mse")
    quantized.fit(np.ones((4, 6, 6, 2)), np.zeros((4, 2)), verbose=0)


def outputs_when_off(model: keras.Model, x: object) -> tuple[np.ndarray, np.ndarray]:
    quantized = quantize_model(model)
    for quantizer in model_quantizers(quantized).values():
        quantizer.disable()
    return model(x, training=False).numpy(), quantized(x, training=False).numpy()


@keras.saving.register_keras_serializable("test")
class Block(layers.Layer):
    """A layer of layers, which are built when it is first called."""

    def __init__(self, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.body = keras.Sequential(
            [layers.Dense(4, activation="relu"), layers.BatchNormalization()]
        )
        self.norm = layers.LayerNormalization()

    def call(self, x: object, training: bool | None = None) -> object:
        return self.norm(x + self.body(x, training=training))


@keras.saving.register_keras_serializable("test")
class Gain(layers.Layer):
    """A layer whose weight is there before it is built."""

    def __init__(self, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.gain = self.add_weight(shape=(4,), initializer="random_normal", name="gain")

    def call(self, x: object) -> object:
        return x * self.gain


def adapted_normalization() -> layers.Layer:
    layer = layers.Normalization()
    layer.adapt(np.random.default_rng(0).standard_normal((20, 4)) * 3 + 1)
    return layer


def test_layer_that_builds_its_layers_when_called() -> None:
    """Not saved: Keras can't load such a layer, quantized or not."""
    x = keras.Input((4,), name="x")
    model = keras.Model(x, layers.Dense(2)(Block()(x)))
    np.testing.assert_array_equal(*outputs_when_off(model, np.random.default_rng(1).random((5, 4))))


STATEFUL = [Gain, adapted_normalization, lambda: layers.PReLU(alpha_initializer="random_normal")]


@pytest.mark.parametrize("make", STATEFUL)
def test_the_state_of_every_layer_comes_along(
    make: Callable[[], layers.Layer], tmp_path: Path
) -> None:
    x = keras.Input((4,), name="x")
    model = keras.Model(x, layers.Dense(2)(make()(x)))
    data = np.random.default_rng(1).standard_normal((5, 4)).astype(np.float32)
    np.testing.assert_array_equal(*outputs_when_off(model, data))
    quantized = quantize_model(model)
    quantized.save(tmp_path / "model.keras")
    np.testing.assert_array_equal(load_model(tmp_path / "model.keras")(data), quantized(data))


@pytest.mark.parametrize("adapt", [True, False])
def test_vocabularies_come_along(adapt: bool) -> None:
    words = ["a", "b", "c"]
    lookup = layers.StringLookup(vocabulary=None if adapt else words)
    if adapt:
        lookup.adapt(tf.constant(words))
    x = keras.Input((1,), dtype="string")
    model = keras.Model(x, layers.Dense(2)(layers.Flatten()(layers.Embedding(5, 3)(lookup(x)))))
    np.testing.assert_array_equal(*outputs_when_off(model, tf.constant([["a"], ["c"], ["z"]])))


def test_augmentation_stays_out_of_inference() -> None:
    model = keras.Sequential(
        [
            keras.Input((6, 6, 2)),
            layers.RandomFlip(),
            layers.RandomRotation(0.1),
            layers.Conv2D(2, 1),
        ]
    )
    np.testing.assert_array_equal(
        *outputs_when_off(model, np.random.default_rng(1).random((3, 6, 6, 2)))
    )


@keras.saving.register_keras_serializable("test")
class OwnStep(keras.Model):
    """A Functional model that trains in a way of its own."""

    def train_step(self, data: object) -> dict[str, float]:
        return {"own": 3.0, **super().train_step(data)}


@keras.saving.register_keras_serializable("test")
class OwnGraph(keras.Model):
    """A Functional model that makes its own graph, and takes no other."""

    def __init__(self, width: int, **kwargs: object) -> None:
        x = keras.Input((4,))
        super().__init__(x, layers.Dense(width)(x), **kwargs)


def test_a_model_keeps_its_own_training_step(tmp_path: Path) -> None:
    x = keras.Input((4,))
    model = OwnStep(x, layers.Dense(2)(x))
    model.compile("sgd", "mse")
    quantized = quantize_model(model)
    assert quantized.fit(np.ones((2, 4)), np.ones((2, 2)), verbose=0).history["own"] == [3.0]
    quantized.save(tmp_path / "model.keras")
    assert type(load_model(tmp_path / "model.keras")) is OwnStep
    assert type(quantize_model(OwnGraph(3))) is type(keras.Model(x, x))


class Detector(OwnGraph):
    """A model that makes its own graph, and decodes its outputs in prediction."""

    def predict_step(self, data: object) -> object:
        return keras.ops.argmax(super().predict_step(data), axis=-1)


def test_steps_that_the_copy_lacks_are_named(caplog: pytest.LogCaptureFixture) -> None:
    quantize_model(OwnGraph(3))
    assert "lacks" not in caplog.text
    quantize_model(Detector(3))
    assert "It lacks what Detector defines in predict_step" in caplog.text


def deep_model() -> keras.Model:
    x = y = keras.Input((1,))
    for _ in range(150):
        y = layers.Dense(1)(y)
    return keras.Model(x, y)


@pytest.mark.matrix
def test_deep_model_works_beyond_recursion_limit(tmp_path: Path) -> None:
    model = deep_model()
    model.save(tmp_path / "model.keras")
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack()) + 220)
    try:
        with pytest.raises(RecursionError):
            keras.models.clone_model(quantize_model(model))
        assert len(model_quantizers(quantize_model(load_model(tmp_path / "model.keras")))) == 300
        assert sys.getrecursionlimit() < before
    finally:
        sys.setrecursionlimit(before)


@pytest.mark.matrix
def test_too_deep_model_is_refused_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    model, before = deep_model(), sys.getrecursionlimit()
    monkeypatch.setattr("qat_lib.keras.apply.recursion.ROOM", 1)
    sys.setrecursionlimit(len(inspect.stack()) + 220)
    try:
        with pytest.raises(UnsupportedModelError, match="setrecursionlimit"):
            quantize_model(model)
    finally:
        sys.setrecursionlimit(before)
