"""A data function of your own: pieces of scikit-learn's two photographs, a temple and a flower.

The parts come from different regions of a photograph, and arrive in batches.
"""

from __future__ import annotations

import keras
import numpy as np
from keras import layers
from sklearn.datasets import load_sample_images

CLASSES = ("temple", "flower")
PARTS = {"train": (0.0, 0.6), "val": (0.8, 1.0), "test": (0.6, 0.8)}
"""Share of a photograph's width at which a part begins and ends."""


def pieces(side=32, stride=12):
    """Return the parts as batches of images (side, side, 3) of 8 bits and class indices."""
    parts = {name: _batches(*ends, side, stride) for name, ends in PARTS.items()}
    return {**parts, "classes": list(CLASSES)}


def _batches(begin, end, side, stride):
    """Yield a batch for each row of pieces; nothing else is in memory."""
    photographs = load_sample_images().images  # both 427 pixels high and 640 wide
    height, width = photographs[0].shape[:2]
    lefts = range(round(begin * width), round(end * width) - side + 1, stride)
    for top in range(0, height - side + 1, stride):
        rows = slice(top, top + side)
        x = [image[rows, left : left + side] for image in photographs for left in lefts]
        yield np.stack(x), np.repeat(np.arange(len(CLASSES)), len(lefts))


def network(input_shape, classes, width=16):
    """Return a small convolutional classifier."""
    x = inputs = keras.Input(input_shape)
    for channels in (width, 2 * width, 4 * width):
        x = layers.Conv2D(channels, 3, strides=2, padding="same", use_bias=False)(x)
        x = layers.ReLU()(layers.BatchNormalization(momentum=0.9)(x))
    return keras.Model(inputs, layers.Dense(classes)(layers.GlobalAveragePooling2D()(x)))
