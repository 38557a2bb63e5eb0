"""Histogram of magnitudes that grows with the data.

It takes one pass and loses no counts.
"""

from __future__ import annotations

from typing import Any

import numpy as np

BINS = 4096


class MagnitudeHistogram:
    """Counts of ``|x|`` in equal bins over [0, upper).

    When a value past ``upper`` comes, ``upper`` doubles until it fits and neighbouring bins merge
    in pairs, so that counts are exact and between 2048 and 4096 bins span the data. Each front end
    derives a class that counts its own tensors, to the same counts.
    """

    def __init__(self, bins: int = BINS) -> None:
        self.counts = np.zeros(bins, np.int64)
        self.upper = 0.0
        self.observed_max = 0.0

    def add(self, tensor: Any, largest: float, weight: int = 1) -> None:
        """Count a tensor of any shape, or a sample of one.

        Args:
            tensor: the magnitudes to count.
            largest: the largest magnitude, finite; of the whole tensor where this is a sample.
            weight: number of elements that each counted one stands for. Default 1.
        """
        self.observed_max = max(self.observed_max, largest)
        if self.upper == 0.0:
            if largest == 0.0:
                self.counts[0] += weight * int(np.prod(tensor.shape))
                return
            self.upper = largest
        while self.upper < largest:
            self.counts = np.concatenate(
                [self.counts.reshape(-1, 2).sum(axis=1), np.zeros(len(self.counts) // 2, int)]
            )
            self.upper *= 2.0
        self.counts += weight * self._count(tensor, len(self.counts))

    def _count(self, tensor: Any, bins: int) -> np.ndarray:
        """Return int64 counts of ``|x|`` in ``bins`` bins over [0, upper].

        ``x`` is taken as float32. The bin of a value is ``|x| / (upper / bins)`` in float64,
        rounded down; the last bin takes what is beyond.
        """
        magnitude = np.abs(np.asarray(tensor, np.float32)).ravel().astype(np.float64)
        index = np.minimum(magnitude / (self.upper / bins), bins - 1).astype(np.int64)
        return np.bincount(index, minlength=bins)

    @property
    def edges(self) -> np.ndarray:
        """The bins' edges: float64, one more than there are bins."""
        return np.linspace(0.0, self.upper, len(self.counts) + 1)
