"""Data and network of the segmentation example: shapes in front of photographs.

The photographs are the two that scikit-learn contains: a temple and a flower.
"""

from __future__ import annotations

import keras
import numpy as np
from keras import layers
from sklearn.datasets import load_sample_images

CLASSES = ("background", "disc", "square", "triangle")


def shapes(samples=1000, side=32, seed=0):
    """Return images (side, side, 3) of 8 bits with one to three shapes, and their masks."""
    generator = np.random.default_rng(seed)
    photographs = load_sample_images().images
    images = np.zeros((samples, side, side, 3), np.uint8)
    masks = np.zeros((samples, side, side), np.uint8)
    for image, mask in zip(images, masks, strict=True):
        photograph = photographs[generator.integers(len(photographs))]
        top, left = (generator.integers(size - side) for size in photograph.shape[:2])
        image[:] = photograph[top : top + side, left : left + side]
        for _ in range(generator.integers(1, 4)):
            label = generator.integers(1, len(CLASSES))
            inside = _inside(CLASSES[label], side, generator)
            color = generator.integers(0, 256, 3)
            noise = generator.normal(0, 10, (side, side, 3))
            image[inside] = (color + noise).clip(0, 255)[inside]
            mask[inside] = label
    return {"train": (images, masks), "classes": list(CLASSES)}


def unet(input_shape, classes, width=16):
    """Return a U-Net with maps at the image's size, its half and its quarter."""
    inputs = keras.Input(input_shape)
    fine = _convolution(inputs, width)
    middle = _convolution(layers.MaxPooling2D()(fine), 2 * width)
    x = _convolution(layers.MaxPooling2D()(middle), 4 * width)
    x = _convolution(x, 4 * width)
    for side, channels in ((middle, 2 * width), (fine, width)):
        x = layers.Concatenate()([layers.UpSampling2D(2)(x), side])
        x = _convolution(x, channels)
    return keras.Model(inputs, layers.Conv2D(classes, 1, name="logits")(x))


def _inside(shape, side, generator):
    """Return the pixels of a shape of random place and size, bool (side, side)."""
    radius = generator.uniform(side / 6, side / 4)
    x, y = generator.uniform(radius, side - radius, 2)
    across, down = (np.arange(side) + 0.5)[None] - x, (np.arange(side) + 0.5)[:, None] - y
    if shape == "disc":
        return across**2 + down**2 <= radius**2
    if shape == "square":
        return (abs(across) <= radius) & (abs(down) <= radius)
    return (abs(down) <= radius) & (2 * abs(across) <= down + radius)


def _convolution(x, channels):
    x = layers.Conv2D(channels, 3, padding="same", use_bias=False)(x)
    return layers.ReLU()(layers.BatchNormalization(momentum=0.9)(x))
