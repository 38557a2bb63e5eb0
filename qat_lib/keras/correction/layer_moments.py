"""Second moments of the inputs and outputs of a Keras layer, and its weights in matching form."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from qat_lib.keras.correction.rounding import Moments

ROWS = 16384
"""Approximate number of sampled output positions."""


def in_groups(layer: Any, kernel: np.ndarray) -> np.ndarray:
    """Return a kernel as ``(groups, taps, outputs)``, with a group per channel if depthwise."""
    if isinstance(layer, keras.layers.DepthwiseConv2D):
        height, width, channels, outputs = kernel.shape
        return np.moveaxis(kernel.reshape(height * width, channels, outputs), 1, 0)
    return kernel.reshape(1, -1, kernel.shape[-1])


def out_of_groups(layer: Any, weights: np.ndarray) -> np.ndarray:
    """Return weights from ``in_groups`` in the shape of the layer's kernel."""
    shape = tuple(layer.kernel.shape)
    if isinstance(layer, keras.layers.DepthwiseConv2D):
        weights = np.moveaxis(weights, 0, 1)
    return weights.reshape(shape)


class LayerMoments:
    """Collects the second moments of a convolution or a Dense layer.

    Args:
        layer: a layer supported according to ``knows``.
        centered: whether to use central moments, for layers with bias correction.
    """

    def __init__(self, layer: Any, *, centered: bool) -> None:
        self._layer = layer
        self._centered = centered
        self._rows = 0
        self._sums: list[Any] = [0.0, 0.0, 0.0, 0.0]

    @staticmethod
    def knows(layer: Any) -> bool:
        """Whether a layer is supported."""
        if isinstance(layer, keras.layers.Dense):
            return True
        is_convolution = isinstance(layer, keras.layers.Conv2D | keras.layers.DepthwiseConv2D)
        is_plain = getattr(layer, "groups", 1) == 1 or isinstance(
            layer, keras.layers.DepthwiseConv2D
        )
        return is_convolution and is_plain and layer.data_format == "channels_last"

    def add(self, inputs: Any, outputs: Any, samples: int) -> None:
        """Add a batch.

        Args:
            inputs: inputs of the quantized layer.
            outputs: outputs of the float layer, without its activation.
            samples: number of samples in all batches.
        """
        budget = max(1, ROWS // samples)
        for index in range(len(inputs)):
            # Sample by sample: the patches of a 3x3 kernel take nine times the memory of the input.
            x = self._patches(tf.cast(inputs[index : index + 1], tf.float32))
            y = tf.cast(outputs[index : index + 1], tf.float32)
            y = tf.reshape(y, (-1, y.shape[-1])).numpy()
            step = max(1, len(y) // budget)
            # Evenly spaced positions, starting in the middle of the first stride.
            self._add_rows(x[step // 2 :: step], y[step // 2 :: step])

    def _add_rows(self, x: np.ndarray, y: np.ndarray) -> None:
        """Add rows of patches ``(rows, taps * channels)`` and outputs ``(rows, outputs)``."""
        if isinstance(self._layer, keras.layers.DepthwiseConv2D):
            channels = self._layer.kernel.shape[2]
            x = np.moveaxis(x.reshape(len(x), -1, channels), 2, 0)
            y = np.moveaxis(y.reshape(len(y), channels, -1), 1, 0)
        else:
            x, y = x[None], y[None]
        turned = np.swapaxes(x, 1, 2)
        parts = (turned @ x, turned @ y, x.sum(axis=1), y.sum(axis=1))
        # Accumulate in float64: float32 sums lose precision over many samples.
        for index, part in enumerate(parts):
            self._sums[index] = self._sums[index] + part.astype(np.float64)
        self._rows += x.shape[1]

    def _patches(self, x: Any) -> np.ndarray:
        layer = self._layer
        if isinstance(layer, keras.layers.Dense):
            return np.asarray(tf.reshape(x, (-1, x.shape[-1])).numpy())
        patches = tf.image.extract_patches(
            x,
            sizes=(1, *layer.kernel_size, 1),
            strides=(1, *layer.strides, 1),
            rates=(1, *layer.dilation_rate, 1),
            padding=layer.padding.upper(),
        )
        return np.asarray(tf.reshape(patches, (-1, patches.shape[-1])).numpy())

    def result(self) -> Moments:
        """Return the moments of all batches, per row."""
        gram, cross, x, y = [part / self._rows for part in self._sums]
        # Bias correction removes the mean error, so rounding only has to match the variations.
        if self._centered:
            gram = gram - x[:, :, None] * x[:, None, :]
            cross = cross - x[:, :, None] * y[:, None, :]
        return Moments(inputs=gram, outputs=cross)
