"""Oscillation of quantized weights in training, in NumPy for every front end.

A weight near the middle between two integers is rounded up and down in turns: the gradient on
either side drives it to the other (Nagel et al. 2022, https://arxiv.org/abs/2203.11086). At few
bits that harms a network, and the statistics of its BatchNormalization.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

OSCILLATING = 0.005
"""Changes of direction per step from which a weight counts as oscillating (Nagel et al. 2022)."""
MOMENTUM = 0.01
"""Weight of a step in the moving averages; theirs."""


@dataclass(kw_only=True)
class _Weight:
    """The integers of one weight tensor, and how they moved."""

    integers: np.ndarray
    direction: np.ndarray
    frequency: np.ndarray
    mean: np.ndarray
    frozen: np.ndarray


class OscillationTracker:
    """Follows the integers of weights from step to step.

    A weight oscillates at a step that changes its integer against the direction of its last
    change. How often it does is a moving average over the steps.

    Args:
        freeze_above: frequency of oscillation, in (0, 1], from which a weight is frozen at the
            integer that it had most; None, the default, freezes none.

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
        """Take note of the integers of each weight tensor after a step."""
        for name, values in integers.items():
            if name not in self._weights:
                self._weights[name] = _first(values)
                continue
            weight = self._weights[name]
            _move(weight, values)
            if self._freeze_above is not None:
                weight.frozen |= weight.frequency > self._freeze_above

    def frozen(self, name: str) -> tuple[np.ndarray, np.ndarray] | None:
        """Return which weights of a tensor are frozen, and integers for them.

        None where none is.
        """
        weight = self._weights.get(name)
        if weight is None or not weight.frozen.any():
            return None
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
        """Return copies of all that was noted of each weight tensor."""
        found = {}
        for name, weight in self._weights.items():
            found[name] = {key: value.copy() for key, value in vars(weight).items()}
        return found

    def set_state(self, state: Mapping[str, Mapping[str, np.ndarray]]) -> None:
        """Put back what ``get_state`` returned."""
        self._weights = {name: _Weight(**noted) for name, noted in state.items()}


def _first(values: np.ndarray) -> _Weight:
    return _Weight(
        integers=np.array(values, np.int16),
        direction=np.zeros(values.shape, np.int8),
        frequency=np.zeros(values.shape, np.float32),
        mean=np.array(values, np.float32),
        frozen=np.zeros(values.shape, bool),
    )


def _move(weight: _Weight, values: np.ndarray) -> None:
    """Follow a step; frozen weights stay."""
    new = np.where(weight.frozen, weight.integers, values).astype(np.int16)
    change = np.sign(new - weight.integers).astype(np.int8)
    turned = change * weight.direction < 0
    weight.frequency *= np.float32(1.0 - MOMENTUM)
    weight.frequency[turned] += np.float32(MOMENTUM)
    open_ = ~weight.frozen
    weight.mean[open_] += np.float32(MOMENTUM) * (new - weight.mean)[open_]
    weight.direction = np.where(change != 0, change, weight.direction)
    weight.integers = new
