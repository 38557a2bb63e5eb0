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

    Attributes:
        counts: number of elements in each bin.
        costs: squared gain of the elements in each bin; None where no gains are given.
        upper: end of the last bin.
        observed_max: largest magnitude that came.
    """

    def __init__(self, bins: int = BINS) -> None:
        self.counts = np.zeros(bins, np.int64)
        self.costs: np.ndarray | None = None
        self.upper = 0.0
        self.observed_max = 0.0

    def add(
        self, tensor: Any, largest: float, weight: int = 1, gains: np.ndarray | None = None
    ) -> None:
        """Count a tensor of any shape, or a sample of one.

        Args:
            tensor: the magnitudes to count.
            largest: the largest magnitude, finite; of the whole tensor where this is a sample.
            weight: number of elements that each counted one stands for. Default 1.
            gains: squared gain of each element, in a shape that broadcasts against the tensor; all
                tensors of a histogram have some, or none has. Default None.
        """
        self.observed_max = max(self.observed_max, largest)
        if self.upper == 0.0:
            if largest == 0.0:
                self.counts[0] += weight * int(np.prod(tensor.shape))
                return
            self.upper = largest
        while self.upper < largest:
            self.counts = _in_half(self.counts)
            self.costs = None if self.costs is None else _in_half(self.costs)
            self.upper *= 2.0
        counts, costs = self._count(tensor, len(self.counts), gains)
        self.counts += weight * counts
        if costs is not None:
            self.costs = weight * costs + (0.0 if self.costs is None else self.costs)

    def _count(
        self, tensor: Any, bins: int, gains: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Return int64 counts and float64 gains of ``|x|`` in ``bins`` bins over [0, upper].

        ``x`` is taken as float32. The bin of a value is ``|x| / (upper / bins)`` in float64,
        rounded down; the last bin takes what is beyond.
        """
        magnitude = np.abs(np.asarray(tensor, np.float32)).ravel().astype(np.float64)
        index = np.minimum(magnitude / (self.upper / bins), bins - 1).astype(np.int64)
        counts = np.bincount(index, minlength=bins)
        if gains is None:
            return counts, None
        spread = np.broadcast_to(gains, np.shape(tensor)).ravel()
        return counts, np.bincount(index, weights=spread, minlength=bins)

    @property
    def edges(self) -> np.ndarray:
        """The bins' edges: float64, one more than there are bins."""
        return np.linspace(0.0, self.upper, len(self.counts) + 1)


def _in_half(bins: np.ndarray) -> np.ndarray:
    """Return bins merged in pairs, and as many empty ones behind."""
    merged = bins.reshape(-1, 2).sum(axis=1)
    return np.concatenate([merged, np.zeros_like(merged)])
