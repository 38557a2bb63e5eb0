"""Data and networks of the examples: diabetes, digits read row by row, and a detector.

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


def table_classifier(input_shape, classes, width=256):
    """Return a network for the columns of a table."""
    x = keras.Input(input_shape)
    return keras.Model(x, layers.Dense(classes, name="logits")(_hidden(x, width)))


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


def detector(input_shape, classes, width=16):
    """Return an anchor-free detector with maps at an eighth and a sixteenth of the image's size.

    A small residual network and a feature pyramid; height and width must be multiples of 16.
    """
    inputs = keras.Input(input_shape)
    x = _convolution(inputs, width, strides=2)
    levels = [x := _residual(x, channels) for channels in (2 * width, 4 * width, 6 * width)][1:]
    fine, coarse = (_convolution(level, 4 * width, kernel=1) for level in levels)
    fine = layers.Add()([fine, layers.UpSampling2D(2)(coarse)])
    outputs = []
    for name, x in (("fine", fine), ("coarse", coarse)):
        for _ in range(2):
            x = _convolution(x, 4 * width)
        # Scores start near 0.01: almost all locations have no box.
        bias = np.repeat([-4.6, 0.0], [classes, 4])
        start = keras.initializers.Constant(bias)
        outputs.append(layers.Conv2D(classes + 4, 1, bias_initializer=start, name=name)(x))
    return keras.Model(inputs, outputs)


def _residual(x, channels):
    shortcut = _convolution(x, channels, kernel=1, strides=2, activation=False)
    x = _convolution(x, channels, strides=2)
    x = _convolution(x, channels, activation=False)
    return layers.ReLU()(layers.Add()([x, shortcut]))


def _convolution(x, channels, kernel=3, strides=1, activation=True):
    x = layers.Conv2D(channels, kernel, strides=strides, padding="same", use_bias=False)(x)
    x = layers.BatchNormalization(momentum=0.9)(x)
    return layers.ReLU()(x) if activation else x


def _hidden(x, width):
    for _ in range(2):
        x = layers.Dense(width, activation="relu")(x)
    return layers.Dropout(0.1)(x)


def _standardized(x):
    return ((x - x.mean(axis=0)) / x.std(axis=0)).astype(np.float32)


def _progression(y):
    return (y[:, None] / TARGET_SCALE).astype(np.float32)
