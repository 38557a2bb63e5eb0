"""A histogram of magnitudes that grows with the data, in one pass and without loss of counts."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

BINS = 4096


class Histogram:
    """Counts of ``|x|`` in equal bins over [0, upper).

    When a value past ``upper`` comes, ``upper`` doubles until it fits and neighbouring bins merge
    in pairs, so that counts are exact and between 2048 and 4096 bins span the data.
    """

    def __init__(self, bins: int = BINS) -> None:
        self.counts = np.zeros(bins, np.int64)
        self.upper = 0.0
        self.observed_max = 0.0

    def add(self, tensor: Any, largest: float) -> None:
        """Count a tensor of any shape, whose largest magnitude is ``largest`` (finite)."""
        self.observed_max = max(self.observed_max, largest)
        if self.upper == 0.0:
            if largest == 0.0:
                self.counts[0] += int(np.prod(tensor.shape))
                return
            self.upper = largest
        while self.upper < largest:
            self.counts = np.concatenate(
                [self.counts.reshape(-1, 2).sum(axis=1), np.zeros(len(self.counts) // 2, int)]
            )
            self.upper *= 2.0
        magnitude = tf.abs(tf.cast(tensor, tf.float32))
        counted = tf.histogram_fixed_width(
            magnitude, [0.0, self.upper], nbins=len(self.counts), dtype=tf.int32
        )
        self.counts += counted.numpy().astype(np.int64)

    @property
    def edges(self) -> np.ndarray:
        """The bins' edges: float64, one more than there are bins."""
        return np.linspace(0.0, self.upper, len(self.counts) + 1)
