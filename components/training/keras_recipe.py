"""Training recipe in Keras: optimizer, callbacks and evaluation weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from qat_lib.errors import ConfigError
from qat_lib.keras import training as helpers
from qat_lib.keras.training.batch_norm import statistics
from qatline.components.settings import QATSettings, TrainingSettings
from qatline.components.settings.code_settings import name_and_options
from qatline.components.support.user_code import call_with, import_callable
from qatline.components.training.framework import Oscillation
from qatline.components.training.rates import rate_at, user_schedule
from qatline.components.training.recipe import FollowsTraining, Recipe


class KerasRecipe(FollowsTraining):
    """Additions of a recipe to ``model.fit``.

    Args:
        model: the model.
        recipe: the recipe.
        batches: returns batches of the training part, without augmentation.
        oscillation: receives the shares of oscillating weights, or None.
    """

    def __init__(
        self,
        model: Any,
        recipe: Recipe,
        batches: Callable[[], Any],
        oscillation: Oscillation | None,
    ) -> None:
        self._model, self._recipe, self._batches = model, recipe, batches
        self._noted = oscillation
        if oscillation is not None or recipe.freeze_oscillating is not None:
            self._oscillation = helpers.WeightOscillation(freeze_above=recipe.freeze_oscillating)
        if recipe.ema:
            self._average = helpers.WeightAverage(recipe.ema)

    def prepare(self, optimizer: Any) -> None:
        """Set the learning rate of learned ranges."""
        helpers.scale_range_rate(optimizer, self._model, self._recipe.range_rate)

    def callbacks(self) -> list[Any]:
        """Return the callbacks; the average is last, after every change of the weights."""
        found: list[Any] = []
        if self._recipe.freeze_batch_norm is not None:
            found.append(helpers.FreezeBatchNorm(self._recipe.freeze_batch_norm))
        if self._recipe.freeze_ranges is not None:
            found.append(helpers.FreezeRanges(self._recipe.freeze_ranges))
        found += [each for each in (self._oscillation, self._average) if each is not None]
        return found

    @contextmanager
    def candidate(self) -> Iterator[None]:
        """Set the evaluation weights of an epoch within the block."""
        with nullcontext() if self._average is None else self._average.averaged():
            if not self._recipe.reestimate_batch_norm:
                yield
                return
            variables = statistics(self._model)
            # Evaluation must not affect the training: restore the running statistics afterwards.
            before = [variable.numpy() for variable in variables]
            helpers.reestimate_batch_norm(self._model, self._batches())
            try:
                yield
            finally:
                for variable, value in zip(variables, before, strict=True):
                    variable.assign(value)

    def finish(self) -> None:
        """Record the oscillation of the weights."""
        if self._noted is not None and self._oscillation is not None:
            self._noted.oscillating.update(self._oscillation.shares)
            self._noted.frozen.update(self._oscillation.frozen_shares)


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
