"""Additions to the schedule of a fine-tuning, in any framework."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from qatline.components.settings import QATSettings, TrainingSettings
from qatline.components.training.framework import TrainingData


class _Weighted(Protocol):
    class_weights: Any


Loss = TypeVar("Loss", bound=_Weighted)

REESTIMATION_SAMPLES = 4096
"""Maximum number of samples for the re-estimation of batch norm statistics."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Averaging and freezing during a training; disabled by default.

    Attributes:
        ema: decay of the weights' moving average; 0 for none.
        freeze_batch_norm: first epoch, counted from 0, with frozen batch norms; None for never.
        reestimate_batch_norm: whether to re-estimate batch norm statistics after each epoch.
        freeze_ranges: first epoch, counted from 0, with frozen ranges; None for never.
        range_rate: learning rate of learned ranges relative to the weights.
        freeze_oscillating: oscillation frequency that freezes a weight; None for never.
    """

    ema: float = 0.0
    freeze_batch_norm: int | None = None
    reestimate_batch_norm: bool = False
    freeze_ranges: int | None = None
    range_rate: float = 1.0
    freeze_oscillating: float | None = None


class FollowsTraining:
    """State of a recipe during a training, as part of a checkpoint.

    Attributes:
        _oscillation: measures oscillation, or None.
        _average: averages the weights, or None.
    """

    _oscillation: Any = None
    _average: Any = None

    def get_state(self) -> dict[str, Any]:
        """Return the state of average and oscillation; None for a disabled one."""
        return {name: part and part.get_state() for name, part in self._followers().items()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the result of ``get_state`` after the training has begun."""
        for name, part in self._followers().items():
            if part is not None:
                part.set_state(state[name])

    def _followers(self) -> dict[str, Any]:
        return {"oscillation": self._oscillation, "average": self._average}


def recipe_of(schedule: TrainingSettings | QATSettings) -> Recipe:
    """Return the recipe of a config section; empty for the baseline's training."""
    if isinstance(schedule, TrainingSettings):
        return Recipe()
    return Recipe(
        ema=schedule.ema,
        freeze_batch_norm=_from_zero(schedule.freeze_batch_norm),
        reestimate_batch_norm=schedule.reestimate_batch_norm,
        freeze_ranges=_from_zero(schedule.freeze_ranges),
        range_rate=schedule.range_rate,
        freeze_oscillating=schedule.freeze_oscillating,
    )


def losses_of(
    make: Callable[[], Loss], schedule: TrainingSettings | QATSettings, source: TrainingData
) -> tuple[Loss, Loss]:
    """Return the losses of the training and of the validation part.

    As in Keras, only the training has class weights. Sample weights come with its batches.

    Raises:
        ConfigError: the task has no class weights, or the data no such class.
    """
    if schedule.class_weights is None:
        loss = make()
        return loss, loss
    weighted, key = make(), f"{schedule.section}.class_weights"
    weighted.class_weights = source.task.class_weights(schedule.class_weights, source.targets, key)
    return weighted, make()


def reestimation_batches(data: TrainingData, batch_size: int) -> int:
    """Return the number of training batches for re-estimating batch norms."""
    return math.ceil(min(data.samples, REESTIMATION_SAMPLES) / batch_size)


def _from_zero(epoch: int | None) -> int | None:
    return None if epoch is None else epoch - 1
