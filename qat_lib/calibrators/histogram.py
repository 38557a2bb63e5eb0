"""Histogram of magnitudes that grows with the data, in one pass and without losing counts."""

from __future__ import annotations

from typing import Any

import numpy as np

BINS = 4096


class MagnitudeHistogram:
    """Counts of ``|x|`` in equal bins over [0, upper).

    For a value above ``upper``, ``upper`` doubles until the value fits, and neighbouring bins merge
    in pairs: counts remain exact, and 2048 to 4096 bins cover the data. Each front end derives a
    class that counts its own tensors, with equal results.

    Attributes:
        counts: number of elements in each bin.
        costs: squared gain of the elements in each bin; None without gains.
        upper: end of the last bin.
        observed_max: largest observed magnitude.
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
            largest: the largest magnitude, finite; that of the whole tensor if ``tensor`` is a
                sample.
            weight: number of elements represented by each counted one. Default 1.
            gains: squared gain of each element, in a shape that broadcasts against the tensor;
                either all tensors of a histogram have gains, or none. Default None.
        """
        self.observed_max = max(self.observed_max, largest)
        if self.upper == 0.0:
            if largest == 0.0:
                # Without a nonzero value there is no bin width yet, but zeros belong to bin 0 in
                # any case.
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

        ``x`` is converted to float32. The bin of a value is ``|x| / (upper / bins)`` in float64,
        rounded down; the last bin includes larger values.
        """
        magnitude = np.abs(np.asarray(tensor, np.float32)).ravel().astype(np.float64)
        # In float64: front ends must assign each value to the same bin.
        index = np.minimum(magnitude / (self.upper / bins), bins - 1).astype(np.int64)
        counts = np.bincount(index, minlength=bins)
        if gains is None:
            return counts, None
        spread = np.broadcast_to(gains, np.shape(tensor)).ravel()
        return counts, np.bincount(index, weights=spread, minlength=bins)

    @property
    def edges(self) -> np.ndarray:
        """Edges of the bins: float64, one more than bins."""
        return np.linspace(0.0, self.upper, len(self.counts) + 1)


def _in_half(bins: np.ndarray) -> np.ndarray:
    """Return bins merged in pairs, followed by as many empty ones."""
    merged = bins.reshape(-1, 2).sum(axis=1)
    return np.concatenate([merged, np.zeros_like(merged)])
