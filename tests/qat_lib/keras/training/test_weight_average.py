"""The average of a model's weights over its steps."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

from qat_lib.core.moving_average import decay_at
from qat_lib.errors import SpecError
from qat_lib.keras.training import FreezeBatchNorm, WeightAverage

X = np.random.default_rng(0).normal(0.0, 1.0, (40, 3)).astype(np.float32)
Y = X @ np.float32([[1, -1], [0, 2], [3, 0]])


def network() -> Any:
    keras.utils.set_random_seed(2)
    x = keras.Input((3,))
    return keras.Model(x, keras.layers.Dense(2, use_bias=False)(x))


def train(model: Any, average: WeightAverage, *callbacks: Any) -> list[np.ndarray]:
    """Return the kernel before training and after each step."""
    found = [np.array(model.get_weights()[0])]
    note = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda *_, **__: found.append(np.array(model.get_weights()[0]))
    )
    model.compile(keras.optimizers.SGD(0.1), "mse")
    model.fit(X, Y, batch_size=4, epochs=2, verbose=0, callbacks=[note, average, *callbacks])
    return found


def test_weights_end_as_their_average() -> None:
    model = network()
    steps = train(model, WeightAverage(0.6))
    expected = steps[0]
    for number, step in enumerate(steps[1:], 1):
        keep = decay_at(0.6, number)
        expected = keep * expected + (1 - keep) * step
    np.testing.assert_allclose(model.get_weights()[0], expected, rtol=1e-5)
    assert not np.allclose(expected, steps[-1], rtol=1e-3)


def test_no_decay_keeps_the_last_weights() -> None:
    model = network()
    steps = train(model, WeightAverage(0.0))
    np.testing.assert_array_equal(model.get_weights()[0], steps[-1])


def test_averaged_lasts_for_its_block() -> None:
    model, average = network(), WeightAverage(0.9)
    found: list[np.ndarray] = []

    def look(*_: Any, **__: Any) -> None:
        before = np.array(model.get_weights()[0])
        with average.averaged():
            found.append(np.array(model.get_weights()[0]))
        np.testing.assert_array_equal(model.get_weights()[0], before)
        assert not np.array_equal(found[-1], before)

    train(model, average, keras.callbacks.LambdaCallback(on_epoch_end=look))
    np.testing.assert_array_equal(model.get_weights()[0], found[-1])


def test_weights_that_freeze_on_the_way_are_averaged_too() -> None:
    x = keras.Input((3,))
    model = keras.Model(x, keras.layers.BatchNormalization()(keras.layers.Dense(2)(x)))
    train(model, WeightAverage(0.5), FreezeBatchNorm(epoch=1))
    assert np.isfinite(model.get_weights()[0]).all()


def test_an_impossible_decay_is_refused() -> None:
    with pytest.raises(SpecError, match=r"Expected a decay in \[0, 1\)"):
        WeightAverage(1.0)
