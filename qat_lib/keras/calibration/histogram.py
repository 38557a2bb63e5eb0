"""Histogram of TensorFlow tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from qat_lib.calibrators.histogram import MagnitudeHistogram


class Histogram(MagnitudeHistogram):
    """Histogram of the magnitudes of TensorFlow tensors and arrays."""

    def _count(
        self, tensor: Any, bins: int, gains: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray | None]:
        if isinstance(tensor, np.ndarray):
            return super()._count(tensor, bins, gains)
        magnitude = tf.abs(tf.cast(tensor, tf.float32))
        limits = [0.0, self.upper]
        counted = tf.histogram_fixed_width(magnitude, limits, nbins=bins, dtype=tf.int32)
        counts = np.asarray(counted.numpy().astype(np.int64))
        if gains is None:
            return counts, None
        index = tf.histogram_fixed_width_bins(magnitude, limits, nbins=bins)
        spread = tf.broadcast_to(tf.constant(gains, tf.float64), magnitude.shape)
        costs = tf.math.bincount(
            tf.reshape(index, [-1]), weights=tf.reshape(spread, [-1]), minlength=bins
        )
        return counts, np.asarray(costs.numpy())
