"""Channel factors of equalization, chosen by predicted rounding noise.

Source: the balance between activations and weights is that of Xiao et al. 2022, "SmoothQuant"
(https://arxiv.org/abs/2211.10438), equation 4. The migration strength is chosen for each group by
predicted rounding noise, modelled as white noise of variance ``step**2 / 12``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LEAST_SHARE = 2.0**-10
"""Lower bound of a channel's largest value, relative to the tensor's: INT8 rounds smaller channels
to zero, and their huge factors would amplify noise."""
BALANCES = (0.25, 0.5, 0.75, 1.0)
"""Migration strengths: the factors follow only the weights (0) to only the activations (1)."""
STEPS = 127.0


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Channels of a group as read by one layer.

    Attributes:
        largest: largest magnitude of each channel of the tensor.
        power: mean square of each channel.
        kernel: weights of the layer, ``(channels, outputs, taps)``; None for a depthwise
            convolution, because each of its channels has a separate range.
    """

    largest: np.ndarray
    power: np.ndarray
    kernel: np.ndarray | None


@dataclass(frozen=True, kw_only=True)
class Bound:
    """A ReLU with an upper bound in a group.

    Attributes:
        value: the bound.
        largest: largest magnitude of each output channel, at most ``value``.
    """

    value: float
    largest: np.ndarray


def channel_scales(readings: Sequence[Reading], bounds: Sequence[Bound]) -> np.ndarray:
    """Return the positive float32 factors of the channels of a group.

    Args:
        readings: the channels as read by each layer.
        bounds: the ReLUs with an upper bound in the group. Each factor is at least the largest
            scaled value behind a bound over that bound, so no scaled bound is inside the range.

    Returns:
        Factors with a minimum of about 1; dead channels have a factor of 1.
    """
    seen = np.max([reading.largest for reading in readings], axis=0)
    alive = seen > 0
    if not np.all(np.isfinite(seen)) or not alive.any():
        return np.ones(len(alive), np.float32)  # nothing to equalize
    activations = np.max([_shares(reading.largest) for reading in readings], axis=0)
    weights = np.max([_weight_shares(reading) for reading in readings], axis=0)
    # Factors of 1 compete, too: equalization must lower the predicted noise.
    best, least = np.ones(len(alive)), _noise(readings, np.ones(len(alive)))
    for balance in BALANCES:
        # Inverse of SmoothQuant's factors: large activations shrink relative to the others.
        scales = weights ** (1 - balance) / activations**balance
        scales = _bounded(np.where(alive, scales / scales[alive].min(), 1.0), bounds)
        noise = _noise(readings, scales)
        # On a tie, prefer the later, stronger balance.
        if noise <= least:
            best, least = scales, noise
    return np.asarray(best, np.float32)


def _shares(values: np.ndarray) -> np.ndarray:
    top = values.max()
    return np.maximum(values / top, LEAST_SHARE) if top > 0 else np.ones_like(values)


def _weight_shares(reading: Reading) -> np.ndarray:
    """Return the largest share of an output range used by the weights of each channel."""
    if reading.kernel is None:
        return np.full(len(reading.largest), LEAST_SHARE)
    magnitude = np.abs(reading.kernel).max(axis=2)
    tops = np.maximum(magnitude.max(axis=0), 1e-30)
    return np.asarray(np.maximum((magnitude / tops).max(axis=1), LEAST_SHARE))


def _bounded(scales: np.ndarray, bounds: Sequence[Bound]) -> np.ndarray:
    """Return factors raised to keep each scaled bound at or above the range of its ReLU."""
    for bound in bounds:
        top = float((bound.largest * scales).max())
        scales = np.maximum(scales, top / bound.value)
    return scales


def _noise(readings: Sequence[Reading], scales: np.ndarray) -> float:
    """Return the predicted noise-to-signal ratio, summed over all readings."""
    return sum(_reading_noise(reading, scales) for reading in readings)


def _reading_noise(reading: Reading, scales: np.ndarray) -> float:
    # The common factor 1 / 12 of both variances is left out: only comparisons count.
    step = (reading.largest * scales).max() / STEPS
    power = np.maximum(reading.power, 1e-30)
    if reading.kernel is None:
        # The noise of a channel that rounds to zero is its own power: 12 in this unit.
        alive = reading.power > 0
        ratios = np.minimum(step**2 / (scales**2 * power), 12.0)
        return float(ratios[alive].mean()) if alive.any() else 0.0
    kernel = reading.kernel / scales[:, None, None]
    # Noise of rounded activations through the weights, then of rounded weights on the activations.
    rounded = step**2 * np.sum(kernel**2, axis=(0, 2))
    weight_steps = np.abs(kernel).max(axis=(0, 2)) / STEPS
    rounded += weight_steps**2 * kernel.shape[2] * np.sum(scales**2 * reading.power)
    signal = np.einsum("cot,c->o", reading.kernel**2, reading.power)
    alive = signal > 0
    return float((rounded[alive] / signal[alive]).mean()) if alive.any() else 0.0
