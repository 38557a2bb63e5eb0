"""Decay of a moving average of weights, for every front end."""

from __future__ import annotations

from qat_lib.errors import SpecError


def check_decay(decay: float) -> None:
    """Check the decay of an average.

    Raises:
        SpecError: the decay is outside [0, 1).
    """
    if not 0 <= decay < 1:
        raise SpecError(f"Expected a decay in [0, 1). Received: {decay!r}.")


def decay_at(decay: float, step: int) -> float:
    """Return the weight of the past at a step, counted from 1.

    The weight rises to ``decay``, so that the average soon forgets the first, untrained steps.

    >>> decay_at(0.99, 1), decay_at(0.99, 10_000)
    (0.18181818181818182, 0.99)
    """
    return min(decay, (1 + step) / (10 + step))
