"""A task of your own: key points, here the hub and the tip of a gauge's needle.

The network returns a map per point; the point is the mean of the locations, weighted by the
softmax of the map. Loss, decoding and scores are all that a task needs; pictures are optional.
"""

from __future__ import annotations

import keras
import numpy as np
from keras import layers, ops
from scipy.special import softmax

from qatline.components.tasks import Metric, Task, shown_image

SIDE = 32


class Keypoints(Task):
    """Points in an image: targets (samples, points, 2) of x and y in pixels."""

    name = "keypoints:Keypoints"
    metrics = (
        Metric(name="distance", title="distance in pixels", higher_is_better=False),
        Metric(name="within_1px", title="points within a pixel", share=True),
    )

    def loss(self, targets, outputs):
        """Return the mean squared distance of the points of each sample."""
        flat = ops.reshape(outputs, (-1, outputs.shape[1] * outputs.shape[2], outputs.shape[3]))
        weights = ops.softmax(flat, axis=1)
        points = ops.einsum("slp,lc->spc", weights, _locations(*outputs.shape[1:3]))
        return ops.mean(ops.sum((points - targets) ** 2, axis=-1), axis=-1)

    def decode(self, outputs):
        """Return the points, (samples, points, 2)."""
        flat = outputs.reshape(len(outputs), -1, outputs.shape[-1])
        return np.einsum("slp,lc->spc", softmax(flat, axis=1), _locations(*outputs.shape[1:3]))

    def score(self, predictions, targets):
        """Return the mean distance, and the share of close points."""
        distances = np.linalg.norm(predictions - targets, axis=-1)
        return {"distance": distances.mean(axis=1), "within_1px": (distances < 1).mean(axis=1)}

    def details(self, samples):  # noqa: ARG002
        """Name the parts of the picture."""
        return {"panels": ["target", "FP32", "INT8"]}

    def picture(self, inputs, targets, outputs, index):
        """Return the image with the points of target, FP32 and engine, side by side."""
        image = shown_image(inputs, index).repeat(4, axis=0).repeat(4, axis=1)
        panels = []
        for points in (targets[index], *(self.decode(each[index][None])[0] for each in outputs)):
            panels.append(image.copy())
            for (x, y), color in zip(4 * points, ((1, 0.2, 0.2), (0.2, 1, 0.2)), strict=True):
                rows, columns = (slice(max(round(v) - 2, 0), round(v) + 3) for v in (y, x))
                panels[-1][rows, columns] = color
        return np.concatenate(panels, axis=1)


def _locations(rows, columns):
    """Return the centres of a map's locations in pixels, float32 (rows * columns, 2)."""
    y, x = np.mgrid[:rows, :columns].reshape(2, -1) + 0.5
    return np.stack([x * SIDE / columns, y * SIDE / rows], axis=1).astype(np.float32)


def gauges(samples=800, seed=0):
    """Return images (32, 32, 1) of needles, and the points of hub and tip."""
    generator = np.random.default_rng(seed)
    hub = generator.uniform(12, 20, (samples, 2))
    angle, length = generator.uniform(0, 2 * np.pi, samples), generator.uniform(8, 11, samples)
    tip = hub + length[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    pixels = _locations(SIDE, SIDE)
    along = np.linspace(0, 1, 24)[:, None, None]
    needle = hub + along * (tip - hub)  # (24, samples, 2)
    images = generator.normal(0, 0.1, (samples, SIDE * SIDE))
    for image, center, points in zip(images, hub, needle.swapaxes(0, 1), strict=True):
        image += np.linalg.norm(pixels[:, None] - points, axis=-1).min(axis=1) < 0.8
        image += np.linalg.norm(pixels - center, axis=-1) < 2.5
    x = images.reshape(samples, SIDE, SIDE, 1).astype(np.float32)
    return {"train": (x, np.stack([hub, tip], axis=1).astype(np.float32))}


def network(input_shape, width=32):
    """Return a network with a map of half the image's size for each point."""
    x = inputs = keras.Input(input_shape)
    for stride in (2, 2, 1, 1):
        x = layers.Conv2D(width, 3, strides=stride, padding="same", use_bias=False)(x)
        x = layers.ReLU()(layers.BatchNormalization(momentum=0.9)(x))
    x = layers.UpSampling2D(2, interpolation="bilinear")(x)
    x = layers.Conv2D(width, 3, padding="same", activation="relu")(x)
    return keras.Model(inputs, layers.Conv2D(2, 1, name="maps")(x))
