"""Quantizers of a batch that is split: ranges and gradients of the whole one."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

import qat_lib
from qat_lib.keras.quantizers.split_batch import learned_by_all, observed_by_all, split_batch

X = np.random.default_rng(0).normal(size=(20, 5)).astype(np.float32)


def same(x: Any) -> Any:
    return x


def gradients(quantizer: Any, x: Any, share: float) -> list[Any]:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(quantizer(x, training=True))) * share
    return [np.asarray(each) for each in tape.gradient(loss, quantizer.trainable_variables)]


def test_gradients_of_a_learned_range_add_up_to_those_of_the_whole_batch() -> None:
    quantizer = qat_lib.TensorQuantizer(range_policy="learned")
    quantizer(X)
    quantizer.amax = 1.0
    (whole,) = gradients(quantizer, X, 1.0)
    total = np.zeros_like(whole)
    for rows in (slice(0, 7), slice(7, 20)):
        share = (rows.stop - rows.start) / 20
        with split_batch(same, tf.constant(share)):
            total += gradients(quantizer, X[rows], share)[0]
    assert abs(whole) > 1e-4
    np.testing.assert_allclose(total, whole, rtol=1e-5)


def test_range_follows_what_any_worker_saw() -> None:
    quantizer = qat_lib.TensorQuantizer(range_policy="last")
    quantizer(X)
    with split_batch(lambda seen: tf.maximum(seen, 7.5), tf.constant(0.5)):
        quantizer(X, training=True)
    assert quantizer.amax == 7.5


def test_a_whole_batch_is_left_as_it_is() -> None:
    assert observed_by_all(X) is X
    assert learned_by_all(X) is X
