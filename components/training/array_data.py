"""Labelled arrays as training data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from qatline.components.data.labelled import AsFloat, Labelled
from qatline.components.data.part import Augment
from qatline.components.data.tf_pipeline import build_dataset
from qatline.components.tasks.task import Task


@dataclass(frozen=True, kw_only=True)
class ArrayData:
    """Training and validation parts in memory.

    Attributes:
        training: samples for training.
        validating: samples for the selection of the best epoch.
        task: meaning of the targets.
    """

    training: Labelled
    validating: Labelled
    task: Task

    @property
    def samples(self) -> int:
        """Number of training samples."""
        return len(self.training.targets)

    @property
    def targets(self) -> Any:
        """Targets of the training part."""
        return self.training.targets

    def train(
        self,
        batch_size: int,
        *,
        shuffle_seed: int,
        augment: Augment,
        worker: tuple[int, int] = (0, 1),
    ) -> Any:
        """Return the batches of an epoch."""
        return build_dataset(
            self.training,
            self._input,
            batch_size,
            shuffle_seed=shuffle_seed,
            augment=augment,
            mirrored=self.task.mirrored,
            worker=worker,
        )

    def validation(self, batch_size: int) -> Any:
        """Return the batches of the validation part, without weights."""
        return build_dataset(replace(self.validating, weights=None), self._input, batch_size)

    @property
    def _input(self) -> AsFloat:
        return AsFloat(image_shape=self.training.input_shape)
