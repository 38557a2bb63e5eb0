"""Data and predictions of a training, in any framework."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from qatline.components.artifacts import Dataset
from qatline.components.data.reader import load_split, numpy_batches, tf_dataset
from qatline.components.tasks import check_numbers, open_task
from qatline.components.training.framework import Framework, TrainingData


class PreparedData:
    """The data set written by the step prepare_data.

    Args:
        path: its directory.
    """

    def __init__(self, path: Path) -> None:
        self._path, info = path, Dataset(path).info()
        self.classes: int = len(info.classes)
        self.samples: int = info.splits["train"]

    def train(
        self,
        batch_size: int,
        *,
        shuffle_seed: int,
        augment: str,
        worker: tuple[int, int] = (0, 1),
    ) -> Any:
        """Return the batches of an epoch, or one worker's rows of each."""
        return tf_dataset(
            self._path,
            "train",
            batch_size,
            shuffle_seed=shuffle_seed,
            augment=augment,
            worker=worker,
        )

    def validation(self, batch_size: int) -> Any:
        """Return the batches of the validation part."""
        return tf_dataset(self._path, "validation", batch_size)


def open_data(data: Path | TrainingData) -> TrainingData:
    """Return ``data`` itself, or the data set in that directory."""
    return PreparedData(data) if isinstance(data, Path) else data


def predict_split(
    framework: Framework, model: Any, dataset: Path, split: str, batch_size: int = 256
) -> np.ndarray:
    """Return the outputs for one part, float32 ``(samples, classes)``."""
    return framework.predict(model, (x for x, _ in numpy_batches(dataset, split, batch_size)))


def split_accuracy(framework: Framework, model: Any, dataset: Path, split: str) -> float:
    """Return a model's top-1 accuracy on one part, in [0, 1]."""
    return outputs_accuracy(predict_split(framework, model, dataset, split), dataset, split)


def outputs_accuracy(outputs: np.ndarray, dataset: Path, split: str) -> float:
    """Return the top-1 accuracy of ``outputs`` on one part, in [0, 1].

    Raises:
        DataError: the outputs contain NaN.
    """
    check_numbers(outputs, f"the model on the {split} part")
    _, targets = load_split(dataset, split, raw=True)
    task = open_task(Dataset(dataset).info())
    return task.summarize(task.measure(outputs, targets))[task.primary.name]
