"""The factors that equalization gives to channels, by the noise that they leave.

Source: the balance of activations against weights is that of Xiao et al. 2022, "SmoothQuant"
(https://arxiv.org/abs/2211.10438), equation 4; how far it goes is chosen for each group by the
rounding noise that it predicts, with white noise of variance ``step**2 / 12``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LEAST_SHARE = 2.0**-10
"""A channel's largest value counts as at least this share of the tensor's: what is smaller than
that, INT8 can't tell from zero, and its scale would make noise of it."""
BALANCES = (0.25, 0.5, 0.75, 1.0)
"""How far the factors follow the activations, from the weights alone (0) to these alone (1)."""
STEPS = 127.0


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One reading of a group's channels by a layer.

    Attributes:
        largest: largest magnitude of each channel of the tensor.
        power: mean square of each channel.
        kernel: the layer's weights, ``(channels, outputs, taps)``; None of a depthwise
            convolution, each of whose channels has a range of its own.
    """

    largest: np.ndarray
    power: np.ndarray
    kernel: np.ndarray | None


@dataclass(frozen=True, kw_only=True)
class Bound:
    """A ReLU with an upper bound among a group's channels.

    Attributes:
        value: the bound.
        largest: largest magnitude of each channel behind it, at most ``value``.
    """

    value: float
    largest: np.ndarray


def channel_scales(readings: Sequence[Reading], bounds: Sequence[Bound]) -> np.ndarray:
    """Return the factors of a group's channels, float32 and positive.

    Args:
        readings: what reads the channels.
        bounds: the ReLUs with an upper bound in the group. No channel is scaled below the largest
            value behind a bound over that bound, so that the bound stays beyond the range.

    Returns:
        Factors of which the least scaled channel has about 1; 1 for a dead channel.
    """
    seen = np.max([reading.largest for reading in readings], axis=0)
    alive = seen > 0
    if not np.all(np.isfinite(seen)) or not alive.any():
        return np.ones(len(alive), np.float32)
    activations = np.max([_shares(reading.largest) for reading in readings], axis=0)
    weights = np.max([_weight_shares(reading) for reading in readings], axis=0)
    best, least = np.ones(len(alive)), _noise(readings, np.ones(len(alive)))
    for balance in BALANCES:
        scales = weights ** (1 - balance) / activations**balance
        scales = _bounded(np.where(alive, scales / scales[alive].min(), 1.0), bounds)
        noise = _noise(readings, scales)
        if noise <= least:
            best, least = scales, noise
    return np.asarray(best, np.float32)


def _shares(values: np.ndarray) -> np.ndarray:
    top = values.max()
    return np.maximum(values / top, LEAST_SHARE) if top > 0 else np.ones_like(values)


def _weight_shares(reading: Reading) -> np.ndarray:
    """Return how much of the outputs' ranges each channel's weights take."""
    if reading.kernel is None:
        return np.full(len(reading.largest), LEAST_SHARE)
    magnitude = np.abs(reading.kernel).max(axis=2)
    tops = np.maximum(magnitude.max(axis=0), 1e-30)
    return np.asarray(np.maximum((magnitude / tops).max(axis=1), LEAST_SHARE))


def _bounded(scales: np.ndarray, bounds: Sequence[Bound]) -> np.ndarray:
    """Raise factors so that each bound stays at or beyond the range of the tensor behind it."""
    for bound in bounds:
        top = float((bound.largest * scales).max())
        scales = np.maximum(scales, top / bound.value)
    return scales


def _noise(readings: Sequence[Reading], scales: np.ndarray) -> float:
    """Return the predicted noise over the signal, of all outputs that read the channels."""
    return sum(_reading_noise(reading, scales) for reading in readings)


def _reading_noise(reading: Reading, scales: np.ndarray) -> float:
    step = (reading.largest * scales).max() / STEPS
    power = np.maximum(reading.power, 1e-30)
    if reading.kernel is None:
        alive = reading.power > 0
        ratios = np.minimum(step**2 / (scales**2 * power), 12.0)
        return float(ratios[alive].mean()) if alive.any() else 0.0
    kernel = reading.kernel / scales[:, None, None]
    rounded = step**2 * np.sum(kernel**2, axis=(0, 2))
    weight_steps = np.abs(kernel).max(axis=(0, 2)) / STEPS
    rounded += weight_steps**2 * kernel.shape[2] * np.sum(scales**2 * reading.power)
    signal = np.einsum("cot,c->o", reading.kernel**2, reading.power)
    alive = signal > 0
    return float((rounded[alive] / signal[alive]).mean()) if alive.any() else 0.0
