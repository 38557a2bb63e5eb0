"""Training recipe in Keras: callbacks and evaluation weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from qat_lib.keras import training as helpers
from qat_lib.keras.training.batch_norm import statistics
from qatline.components.training.framework import Oscillation
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
