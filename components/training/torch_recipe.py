"""Training recipe in PyTorch; see ``qatline.components.training.keras_recipe``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from torch import nn

from qat_lib.torch import model_quantizers
from qat_lib.torch import training as helpers
from qatline.components.training.framework import Oscillation
from qatline.components.training.recipe import FollowsTraining, Recipe


class TorchTrainingRecipe(FollowsTraining):
    """Additions of a recipe to a training loop.

    Args:
        module: the module.
        recipe: the recipe.
        batches: returns inputs of the training part, without augmentation.
        oscillation: receives the shares of oscillating weights, or None.
    """

    def __init__(
        self,
        module: nn.Module,
        recipe: Recipe,
        batches: Callable[[], Iterable[Any]],
        oscillation: Oscillation | None,
    ) -> None:
        self._module, self._recipe, self._batches = module, recipe, batches
        self._noted = oscillation
        self._trained = [p for p in module.parameters() if p.requires_grad]
        quantizers = model_quantizers(module).values()
        self._followed = [quantizer for quantizer in quantizers if not quantizer.frozen]
        if oscillation is not None or recipe.freeze_oscillating is not None:
            freeze = recipe.freeze_oscillating
            self._oscillation = helpers.WeightOscillation(module, freeze_above=freeze)
        if recipe.ema:
            self._average = helpers.WeightAverage(module, recipe.ema)

    def begin_epoch(self, epoch: int) -> None:
        """Set the module to training mode, except for frozen parts."""
        # ``train()`` also reactivates frozen batch norms: freeze them again in each epoch.
        self._module.train()
        if _has_come(self._recipe.freeze_batch_norm, epoch):
            helpers.freeze_batch_norm(self._module)
        if _has_come(self._recipe.freeze_ranges, epoch):
            helpers.freeze_ranges(self._module)

    def end_step(self) -> None:
        """Update the followers after a step; the average is last, after all weight changes."""
        if self._oscillation is not None:
            self._oscillation.step()
        if self._average is not None:
            self._average.step()

    @contextmanager
    def candidate(self) -> Iterator[None]:
        """Set the evaluation weights of an epoch within the block."""
        with nullcontext() if self._average is None else self._average.averaged():
            if not self._recipe.reestimate_batch_norm:
                yield
                return
            norms = helpers.batch_norms(self._module)
            # Evaluation must not affect the training: restore the running statistics afterwards.
            before = [{k: v.clone() for k, v in norm.state_dict().items()} for norm in norms]
            helpers.reestimate_batch_norm(self._module, self._batches())
            try:
                yield
            finally:
                for norm, state in zip(norms, before, strict=True):
                    norm.load_state_dict(state)

    def finish(self) -> None:
        """Record the oscillation of the weights; make frozen parameters trainable again."""
        if self._average is not None:
            self._average.finish()
        for parameter in self._trained:
            parameter.requires_grad_(True)
        for quantizer in self._followed:
            quantizer.unfreeze()
        if self._noted is not None and self._oscillation is not None:
            self._noted.oscillating.update(self._oscillation.shares)
            self._noted.frozen.update(self._oscillation.frozen_shares)


def _has_come(first: int | None, epoch: int) -> bool:
    return first is not None and epoch >= first
