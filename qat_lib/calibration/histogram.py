"""The histogram of TensorFlow tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from qat_lib.calibrators.histogram import MagnitudeHistogram


class Histogram(MagnitudeHistogram):
    """Counts of the magnitudes of TensorFlow tensors and arrays."""

    def _count(self, tensor: Any, bins: int) -> np.ndarray:
        if isinstance(tensor, np.ndarray):
            return super()._count(tensor, bins)
        magnitude = tf.abs(tf.cast(tensor, tf.float32))
        counted = tf.histogram_fixed_width(magnitude, [0.0, self.upper], nbins=bins, dtype=tf.int32)
        return np.asarray(counted.numpy().astype(np.int64))
