"""Data and networks of the examples: progression of diabetes, and digits read row by row.

The data is scikit-learn's: 442 patients with ten measurements each and a measure of the disease a
year later, and 1,797 handwritten digits.
"""

from __future__ import annotations

import keras
import numpy as np
from keras import layers
from sklearn.datasets import load_diabetes, load_digits

TARGET_SCALE = 100.0
"""The measure of the disease ranges from 25 to 346; networks train better on small numbers."""


def patients():
    """Return ten measurements of each patient, and the progression of the disease."""
    x, y = load_diabetes(return_X_y=True)
    return {"train": (_standardized(x), _progression(y))}


def patients_in_two_inputs():
    """Return the same patients: their body in one input, their blood serum in another."""
    x, y = load_diabetes(return_X_y=True)
    x = _standardized(x)
    return {"train": ({"body": x[:, :4], "serum": x[:, 4:]}, _progression(y))}


def scanned_digits():
    """Return digits as signals: eight time steps with eight channels."""
    digits = load_digits()
    signals = digits.images.astype(np.float32) / 16
    return {"train": (signals, digits.target), "classes": [str(name) for name in range(10)]}


def regressor(input_shape, width=256):
    """Return a network for all measurements."""
    x = keras.Input(input_shape)
    return keras.Model(x, layers.Dense(1, name="progression")(_hidden(x, width)))


def two_input_regressor(input_shape, width=256):
    """Return a network that reads both inputs and joins them."""
    inputs = {name: keras.Input(shape, name=name) for name, shape in input_shape.items()}
    parts = [layers.Dense(width // 2, activation="relu")(x) for x in inputs.values()]
    joined = layers.Concatenate()(parts)
    return keras.Model(inputs, layers.Dense(1, name="progression")(_hidden(joined, width)))


def signal_classifier(input_shape, classes, width=64):
    """Return a network of one-dimensional convolutions."""
    inputs = keras.Input(input_shape)
    x = inputs
    for _ in range(3):
        x = layers.Conv1D(width, 3, padding="same", use_bias=False)(x)
        x = layers.ReLU()(layers.BatchNormalization(momentum=0.9)(x))
    x = layers.GlobalAveragePooling1D()(x)
    return keras.Model(inputs, layers.Dense(classes, name="logits")(x))


def _hidden(x, width):
    for _ in range(2):
        x = layers.Dense(width, activation="relu")(x)
    return layers.Dropout(0.1)(x)


def _standardized(x):
    return ((x - x.mean(axis=0)) / x.std(axis=0)).astype(np.float32)


def _progression(y):
    return (y[:, None] / TARGET_SCALE).astype(np.float32)
