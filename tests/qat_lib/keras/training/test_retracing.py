"""A training step that is traced again."""

import keras
import numpy as np

from qat_lib.keras.training.retracing import retrace


def test_retrace_follows_a_change_of_what_trains() -> None:
    x = keras.Input((2,))
    model = keras.Model(x, keras.layers.Dense(1)(x))
    model.compile("sgd", "mse")
    retrace(model)
    assert model.train_function is None
    data = np.ones((2, 2)), np.zeros((2, 1))
    model.fit(*data, verbose=0)
    model.layers[1].kernel.trainable = False
    before = model.get_weights()
    retrace(model)
    model.fit(*data, verbose=0)
    after = model.get_weights()
    np.testing.assert_array_equal(before[0], after[0])
    assert not np.array_equal(before[1], after[1])
