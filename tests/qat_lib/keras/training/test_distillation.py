"""Soft targets from a trained model."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from qat_lib.keras.training import soft_targets

X = np.float32([[1, 0], [0, 1]])
KERNEL = np.float32([[2, 0, -1], [0, 1, 0]])


def teacher(activation: str | None = None) -> keras.Model:
    x = keras.Input((2,))
    dense = keras.layers.Dense(3, use_bias=False, activation=activation)
    model = keras.Model(x, dense(x))
    dense.set_weights([KERNEL])
    return model


@pytest.mark.parametrize("activation", [None, "softmax"])
@pytest.mark.parametrize("weight", [0.0, 0.25, 1.0])
def test_soft_targets_blend(activation: str | None, weight: float) -> None:
    given = tf.data.Dataset.from_tensors((X, np.array([1, 2])))
    blend = soft_targets(teacher(activation), 3, weight, probabilities=activation is not None)
    ((x, targets),) = given.map(blend).as_numpy_iterator()
    logits = np.exp(X @ KERNEL)
    soft = logits / logits.sum(1, keepdims=True)
    np.testing.assert_array_equal(x, X)
    np.testing.assert_allclose(targets, (1 - weight) * np.eye(3)[[1, 2]] + weight * soft, rtol=1e-5)


def test_soft_targets_are_the_teachers_alone_by_default() -> None:
    _, targets = soft_targets(teacher(), 3)(X, tf.constant([0, 0]))
    np.testing.assert_allclose(targets, tf.nn.softmax(X @ KERNEL), rtol=1e-5)
