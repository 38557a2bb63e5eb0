"""Optimizer of a Keras training."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from qat_lib.errors import ConfigError
from qatline.components.settings import QATSettings, TrainingSettings
from qatline.components.settings.code_settings import name_and_options
from qatline.components.support.user_code import call_with, import_callable
from qatline.components.training.rates import rate_at, user_schedule


class RateTable(keras.optimizers.schedules.LearningRateSchedule):
    """Learning rate of each step; the last one holds for further steps.

    Args:
        rates: rates from the first step on.
    """

    def __init__(self, rates: Any) -> None:
        self.rates = np.asarray(rates, np.float32)

    def __call__(self, step: Any) -> Any:
        """Return the rate of a step, counted from 0."""
        last = len(self.rates) - 1
        return tf.gather(self.rates, tf.minimum(tf.cast(step, tf.int64), last))

    def get_config(self) -> dict[str, Any]:
        """Return the rates."""
        return {"rates": self.rates.tolist()}


def optimizer_of(schedule: TrainingSettings | QATSettings, steps: int) -> Any:
    """Return the optimizer of a training.

    Args:
        schedule: optimizer, learning rate and schedule.
        steps: steps of the whole training.

    Raises:
        ConfigError: the user's function fails, or returns something else.
    """
    rate = _rate(schedule, max(1, steps))
    name, options = name_and_options(schedule.optimizer)
    if ":" in name:
        key = f"{schedule.section}.optimizer"
        found = call_with(
            key,
            name,
            import_callable(key, name),
            {"learning_rate": rate},
            options,
            any_keyword=True,
        )
        if not isinstance(found, keras.optimizers.Optimizer):
            raise ConfigError(
                f"{key}: {name!r} returned a {type(found).__name__}, expected a "
                "keras.optimizers.Optimizer"
            )
        return found
    decay: dict[str, Any] = {"weight_decay": schedule.weight_decay} if schedule.weight_decay else {}
    if name == "sgd":
        return keras.optimizers.SGD(rate, momentum=0.9, nesterov=True, **decay)
    kind = keras.optimizers.AdamW if name == "adamw" else keras.optimizers.Adam
    return kind(rate, **decay)


def _rate(schedule: TrainingSettings | QATSettings, steps: int) -> Any:
    """Return the learning rate: a number, or a schedule of Keras."""
    if schedule.schedule == "constant":
        return schedule.learning_rate
    own = user_schedule(schedule, steps)
    if own is None:
        return keras.optimizers.schedules.CosineDecay(schedule.learning_rate, steps)
    if isinstance(own, keras.optimizers.schedules.LearningRateSchedule):
        return own
    # A table instead of the function: the step is a tensor in the traced training step.
    return RateTable([rate_at(schedule, own, step) for step in range(steps)])
