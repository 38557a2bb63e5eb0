"""Oscillation of quantized weights in training, in NumPy for every front end.

The rounding of a weight near the middle between two integers alternates: the gradient on either
side drives it to the other (Nagel et al. 2022, https://arxiv.org/abs/2203.11086). At low bit
widths, oscillation degrades the network and the statistics of its BatchNormalization.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

OSCILLATING = 0.005
"""Changes of direction per step above which a weight counts as oscillating (Nagel et al. 2022)."""
MOMENTUM = 0.01
"""Weight of a step in the moving averages (Nagel et al. 2022)."""


@dataclass(kw_only=True)
class _Weight:
    """Integers of one weight tensor and the history of their changes."""

    integers: np.ndarray
    direction: np.ndarray
    frequency: np.ndarray
    mean: np.ndarray
    frozen: np.ndarray


class OscillationTracker:
    """Tracks the integers of weights from step to step.

    A weight oscillates at a step that changes its integer against the direction of its last change.
    The frequency of oscillation is a moving average over the steps.

    Args:
        freeze_above: frequency of oscillation, in (0, 1], above which a weight is frozen at its
            most frequent integer. Default None: no weight is frozen.

    Examples:
        >>> tracker = OscillationTracker()
        >>> for integer in (3, 4, 3, 4):
        ...     tracker.observe({"kernel": np.array([integer, 7])})
        >>> tracker.shares()
        {'kernel': 0.5}
    """

    def __init__(self, *, freeze_above: float | None = None) -> None:
        self._freeze_above = freeze_above
        self._weights: dict[str, _Weight] = {}

    def observe(self, integers: Mapping[str, np.ndarray]) -> None:
        """Record the integers of each weight tensor after a step."""
        for name, values in integers.items():
            if name not in self._weights:
                self._weights[name] = _first(values)
                continue
            weight = self._weights[name]
            _move(weight, values)
            if self._freeze_above is not None:
                weight.frozen |= weight.frequency > self._freeze_above

    def frozen(self, name: str) -> tuple[np.ndarray, np.ndarray] | None:
        """Return the mask of frozen weights of a tensor and their integers, or None without any."""
        weight = self._weights.get(name)
        if weight is None or not weight.frozen.any():
            return None
        # The mean of the integers, rounded, is the more frequent one of the two that a weight moves
        # between.
        return weight.frozen, np.rint(weight.mean)

    def shares(self) -> dict[str, float]:
        """Return the share of oscillating weights of each tensor, in [0, 1]."""
        found = {}
        for name, weight in self._weights.items():
            found[name] = float(np.mean((weight.frequency > OSCILLATING) & ~weight.frozen))
        return found

    def frozen_shares(self) -> dict[str, float]:
        """Return the share of frozen weights of each tensor, in [0, 1]."""
        return {name: float(np.mean(weight.frozen)) for name, weight in self._weights.items()}

    def get_state(self) -> dict[str, dict[str, np.ndarray]]:
        """Return copies of the statistics of each weight tensor."""
        found = {}
        for name, weight in self._weights.items():
            found[name] = {key: value.copy() for key, value in vars(weight).items()}
        return found

    def set_state(self, state: Mapping[str, Mapping[str, np.ndarray]]) -> None:
        """Restore the result of ``get_state``."""
        self._weights = {name: _Weight(**noted) for name, noted in state.items()}


def _first(values: np.ndarray) -> _Weight:
    return _Weight(
        # Weights have signed integers of at most 16 bits.
        integers=np.array(values, np.int16),
        direction=np.zeros(values.shape, np.int8),
        frequency=np.zeros(values.shape, np.float32),
        mean=np.array(values, np.float32),
        frozen=np.zeros(values.shape, bool),
    )


def _move(weight: _Weight, values: np.ndarray) -> None:
    """Update the statistics by one step; frozen weights do not change."""
    new = np.where(weight.frozen, weight.integers, values).astype(np.int16)
    change = np.sign(new - weight.integers).astype(np.int8)
    # The direction of the last change is kept over steps without one, so a slow oscillation counts,
    # too.
    turned = change * weight.direction < 0
    weight.frequency *= np.float32(1.0 - MOMENTUM)
    weight.frequency[turned] += np.float32(MOMENTUM)
    open_ = ~weight.frozen
    weight.mean[open_] += np.float32(MOMENTUM) * (new - weight.mean)[open_]
    weight.direction = np.where(change != 0, change, weight.direction)
    weight.integers = new
