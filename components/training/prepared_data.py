"""Data and predictions of a training, in any framework."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from qatline.components.artifacts import Dataset
from qatline.components.artifacts.data_info import DatasetInfo
from qatline.components.artifacts.models import ModelFolder, measured_metrics
from qatline.components.data.array_checks import CHUNK_BYTES
from qatline.components.data.part import Augment
from qatline.components.data.reader import numpy_batches, open_split, tf_dataset
from qatline.components.tasks import Outputs, check_numbers, joined, open_task
from qatline.components.training.framework import Framework, TrainingData

_LARGEST_BATCH = 256


class PreparedData:
    """The data set written by the step prepare_data.

    Args:
        path: its directory.
    """

    def __init__(self, path: Path) -> None:
        self._path, info = path, Dataset(path).info()
        self.task = open_task(info)
        self.samples: int = info.splits["train"]

    @property
    def targets(self) -> Any:
        """Targets of the training part, memory-mapped if they are large."""
        return open_split(self._path, "train").targets

    def train(
        self,
        batch_size: int,
        *,
        shuffle_seed: int,
        augment: Augment,
        worker: tuple[int, int] = (0, 1),
    ) -> Any:
        """Return the batches of an epoch, or one worker's rows of each."""
        return tf_dataset(
            self._path,
            "train",
            batch_size,
            shuffle_seed=shuffle_seed,
            augment=augment,
            mirrored=self.task.mirrored,
            worker=worker,
        )

    def validation(self, batch_size: int) -> Any:
        """Return the batches of the validation part."""
        return tf_dataset(self._path, "validation", batch_size)


def open_data(data: Path | TrainingData) -> TrainingData:
    """Return ``data`` itself, or the data set in that directory."""
    return PreparedData(data) if isinstance(data, Path) else data


def measure_split(
    framework: Framework,
    model: Any,
    dataset: Path,
    split: str,
    *,
    keep: ModelFolder | None = None,
    batch_size: int | None = None,
) -> float:
    """Return the task's primary metric of a model on one part.

    Args:
        framework: framework of the model.
        model: the model.
        dataset: directory of the prepared data.
        split: name of the part.
        keep: receives the outputs, batch by batch; None for none.
        batch_size: samples that are predicted at once. Default: at most 256, with inputs and outputs
            of about 32 MiB.

    Raises:
        DataError: the outputs contain NaN.
    """
    info = Dataset(dataset).info()
    task, targets, measured = open_task(info), deque[Any](), []
    size = batch_size or _batch_size(info)

    # ``predict`` may read ahead of its answers: the targets wait in a queue.
    def inputs() -> Iterator[Any]:
        for x, y in numpy_batches(dataset, split, size):
            targets.append(y)
            yield x

    def outputs() -> Iterator[Outputs]:
        for values in framework.predict(model, inputs()):
            check_numbers(values, f"the model on the {split} part")
            measured.append(task.measure(values, targets.popleft()))
            yield values

    if keep is None:
        deque(outputs(), maxlen=0)
    else:
        keep.write_predictions(outputs(), info.splits[split])
    return task.summarize(joined(measured))[task.primary.name]


def _batch_size(info: DatasetInfo) -> int:
    values = sum(math.prod(each.shape) for each in info.inputs.values())
    values += math.prod(info.target_shape) * max(1, len(info.classes))
    return max(1, min(_LARGEST_BATCH, CHUNK_BYTES // (4 * values)))


def measure_model(
    framework: Framework, model: Any, dataset: Path, *, keep: ModelFolder | None = None
) -> dict[str, float]:
    """Return the primary metric on the test and validation parts, such as ``test_accuracy``.

    With ``keep``, the outputs on the test part are written to that folder.
    """
    return measured_metrics(
        open_task(Dataset(dataset).info()).primary.name,
        test=measure_split(framework, model, dataset, "test", keep=keep),
        validation=measure_split(framework, model, dataset, "validation"),
    )
