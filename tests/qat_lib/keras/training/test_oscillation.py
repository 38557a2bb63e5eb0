"""Oscillation of a Keras model's weights, measured and stopped."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

import qat_lib
from qat_lib.core.spec import QuantizationSpec
from qat_lib.keras.training import WeightOscillation

X = np.float32([[1.0]])


def network() -> Any:
    """A 4-bit weight of 7 integers on either side; its scale is that of the larger one, 1."""
    x = keras.Input((1,))
    dense = keras.layers.Dense(2, use_bias=False, name="dense")
    model = keras.Model(x, dense(x))
    spec = QuantizationSpec()
    spec.add(name="dense", num_bits=4, per_channel=False)
    model = qat_lib.quantize_model(model, "partial", spec)
    model.set_weights(model.get_weights())
    quantized = model.get_layer("quant_dense").layer
    quantized.kernel.assign([[3.49, 7.0]])
    qat_lib.calibrate(model, X)
    return model


class Push(keras.callbacks.Callback):
    """Moves the first weight to given places, one a step."""

    def __init__(self, places: list[float]) -> None:
        super().__init__()
        self._places = iter(places)
        self.seen: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        kernel = self.model.get_layer("quant_dense").layer.kernel
        self.seen.append(float(kernel.value[0, 0]))
        kernel.assign([[next(self._places), 7.0]])


def train(places: list[float], callback: WeightOscillation) -> Push:
    model, push = network(), Push(places)
    model.compile(keras.optimizers.SGD(0.0), "mse")
    x, y = np.repeat(X, len(places), 0), np.zeros((len(places), 2))
    model.fit(x, y, batch_size=1, verbose=0, shuffle=False, callbacks=[push, callback])
    return push


def test_shares_are_of_weights_that_turn_back() -> None:
    measured = WeightOscillation()
    train([3.6, 3.4, 3.6], measured)
    assert measured.shares == {"dense_kernel_quantizer": 0.5}
    assert measured.frozen_shares == {"dense_kernel_quantizer": 0.0}


def test_a_weight_that_stays_does_not_oscillate() -> None:
    measured = WeightOscillation()
    train([3.6, 4.4, 3.7], measured)
    assert measured.shares == {"dense_kernel_quantizer": 0.0}


def test_an_oscillating_weight_is_frozen_on_its_integer() -> None:
    measured = WeightOscillation(freeze_above=0.005)
    push = train([3.6, 3.4, 3.6, 3.9, 4.2], measured)
    assert measured.frozen_shares == {"dense_kernel_quantizer": 0.5}
    assert push.seen[:2] == [np.float32(3.49), np.float32(3.6)]
    assert push.seen[2:] == [3.0, 3.0, 3.0]


def test_a_float_model_has_nothing_to_measure() -> None:
    x = keras.Input((1,))
    model = keras.Model(x, keras.layers.Dense(2)(x))
    measured = WeightOscillation(freeze_above=0.5)
    model.compile("sgd", "mse")
    model.fit(X, np.zeros((1, 2)), verbose=0, callbacks=[measured])
    assert measured.shares == {}
