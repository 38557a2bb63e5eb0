"""Frozen and re-estimated statistics of BatchNormalization."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import qat_lib
from qat_lib.errors import CalibrationError
from qat_lib.keras.training import FreezeBatchNorm, reestimate_batch_norm
from qat_lib.keras.training.batch_norm import batch_norms, statistics

X = np.random.default_rng(0).normal(2.0, 3.0, (24, 4)).astype(np.float32)
Y = np.zeros((24, 2), np.float32)


def network() -> Any:
    keras.utils.set_random_seed(1)
    x = keras.Input((4,))
    inner = keras.Sequential([keras.layers.BatchNormalization(name="inner_bn")], name="inner")
    y = keras.layers.BatchNormalization(name="bn")(keras.layers.Dense(3, name="dense")(x))
    return keras.Model(x, keras.layers.Dense(2, name="out")(inner(y)))


def weights_by_epoch(model: Any, *callbacks: Any, epochs: int = 3) -> list[dict[str, np.ndarray]]:
    found: list[dict[str, np.ndarray]] = []

    def note(*_: Any) -> None:
        found.append({v.path: np.array(v.value) for v in model.variables})

    told = keras.callbacks.LambdaCallback(on_epoch_end=note)
    model.compile("sgd", "mse")
    model.fit(X, Y, batch_size=8, epochs=epochs, verbose=0, callbacks=[*callbacks, told])
    return found


def moved(before: dict[str, np.ndarray], after: dict[str, np.ndarray]) -> set[str]:
    return {name for name, value in before.items() if not np.array_equal(value, after[name])}


def test_batch_norms_are_found_at_any_depth() -> None:
    assert {layer.name for layer in batch_norms(network())} == {"bn", "inner_bn"}
    assert len(statistics(network())) == 4


def test_freeze_batch_norm_waits_for_its_epoch() -> None:
    first, second, third = weights_by_epoch(network(), FreezeBatchNorm(epoch=2))
    assert any("bn/" in name for name in moved(first, second))
    still = moved(second, third)
    assert still
    assert not any("bn/" in name for name in still)


def test_freeze_batch_norm_normalizes_as_in_inference() -> None:
    model = network()
    seen: list[float] = []

    def loss(y: Any, outputs: Any) -> Any:
        tf.py_function(lambda value: seen.append(float(value)), [tf.reduce_sum(outputs)], [])
        return tf.reduce_mean(tf.square(outputs - y))

    model.compile(keras.optimizers.SGD(0.0), loss)
    expected = np.sum(np.array(model(X, training=False)))
    model.fit(X, Y, batch_size=24, verbose=0, shuffle=False, callbacks=[FreezeBatchNorm()])
    assert seen[-1] == pytest.approx(expected, rel=1e-4)


def test_freeze_batch_norm_ends_with_the_training() -> None:
    model = network()
    fixed = batch_norms(model)[1]
    fixed.trainable = False
    frozen = weights_by_epoch(model, FreezeBatchNorm(), epochs=1)[-1]
    assert [layer.trainable for layer in batch_norms(model)] == [True, False]
    after = weights_by_epoch(model, epochs=1)[-1]
    assert any("bn/moving" in name for name in moved(frozen, after))


def test_freeze_batch_norm_needs_no_batch_norm() -> None:
    x = keras.Input((4,))
    model = keras.Model(x, keras.layers.Dense(2)(x))
    assert len(weights_by_epoch(model, FreezeBatchNorm(), epochs=2)) == 2


def test_reestimate_batch_norm_takes_the_mean_of_the_batches() -> None:
    x = keras.Input((4,))
    model = keras.Model(x, keras.layers.BatchNormalization(momentum=0.5)(x))
    assert reestimate_batch_norm(model, [X[:8], (X[8:16], Y[8:16]), X[16:]]) == 1
    (norm,) = batch_norms(model)
    parts = np.split(X, 3)
    np.testing.assert_allclose(
        np.array(norm.moving_mean), np.mean([part.mean(0) for part in parts], 0), rtol=1e-5
    )
    np.testing.assert_allclose(
        np.array(norm.moving_variance), np.mean([part.var(0) for part in parts], 0), rtol=1e-5
    )
    assert norm.momentum == 0.5


def test_reestimate_batch_norm_takes_no_more_batches_than_asked() -> None:
    x = keras.Input((4,))
    model = keras.Model(x, keras.layers.BatchNormalization()(x))
    reestimate_batch_norm(model, tf.data.Dataset.from_tensor_slices(X).batch(8), batches=1)
    np.testing.assert_allclose(
        np.array(batch_norms(model)[0].moving_mean), X[:8].mean(0), rtol=1e-5
    )


def test_reestimate_batch_norm_leaves_ranges_and_weights() -> None:
    model = qat_lib.quantize_model(network())
    qat_lib.calibrate(model, X, freeze=False)
    before = {v.path: np.array(v.value) for v in model.variables}
    reestimate_batch_norm(model, [X * 100])
    after = {v.path: np.array(v.value) for v in model.variables}
    assert all("moving" in name for name in moved(before, after))
    quantizers = qat_lib.model_quantizers(model).values()
    assert not all(quantizer.frozen for quantizer in quantizers)


def test_reestimate_batch_norm_measures_frozen_ones_too() -> None:
    model = network()
    for layer in batch_norms(model):
        layer.trainable = False
    before = np.array(batch_norms(model)[0].moving_mean)
    reestimate_batch_norm(model, [X])
    assert not np.array_equal(before, np.array(batch_norms(model)[0].moving_mean))
    assert not any(layer.trainable for layer in batch_norms(model))


def test_reestimate_batch_norm_needs_data() -> None:
    model = network()
    before = model.get_weights()
    with pytest.raises(CalibrationError, match="Expected at least one batch of data"):
        reestimate_batch_norm(model, [])
    for old, new in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)


def test_reestimate_batch_norm_of_none_reads_no_data() -> None:
    x = keras.Input((4,))
    assert reestimate_batch_norm(keras.Model(x, keras.layers.Dense(1)(x)), iter([])) == 0
