"""What a training reads of a prepared data set, and what a model says of one part."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from qat_lib.errors import DataError
from qatline.components.artifacts import Baseline
from qatline.components.data.labelled import Labelled
from qatline.components.tasks import task_for
from qatline.components.training import prepared_data
from qatline.components.training.array_data import ArrayData
from qatline.components.training.prepared_data import (
    PreparedData,
    measure_model,
    measure_split,
    open_data,
)

X = np.float32([[1, 0], [0, 1], [2, 0], [0, 2], [3, 1]])
Y = np.array([0, 1, 0, 1, 0])


class Identity:
    """A framework whose models answer with their images."""

    def predict(self, model: Any, batches: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
        for batch in batches:
            yield batch if model is None else model(batch)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Put five samples of two classes in place of the reader; return who asked for what."""
    calls: list[Any] = []

    def numpy_batches(dataset: Path, split: str, size: int) -> Any:
        calls.append((split, size))
        return [(X[:3], Y[:3]), (X[3:], Y[3:])]

    def tf_dataset(dataset: Path, split: str, size: int, **options: Any) -> str:
        calls.append((split, size, options))
        return split

    info = task_for("classification", classes=["a", "b"]).data
    info = replace(info, splits={"train": 5, "test": 5, "validation": 5})
    opened = SimpleNamespace(info=lambda: info)
    monkeypatch.setattr(prepared_data, "Dataset", lambda dataset: opened)
    monkeypatch.setattr(prepared_data, "numpy_batches", numpy_batches)
    monkeypatch.setattr(prepared_data, "tf_dataset", tf_dataset)
    return calls


FRAMEWORK: Any = Identity()


def test_measure_split_compares_with_the_targets(asked: list[Any]) -> None:
    assert measure_split(FRAMEWORK, None, Path("/data"), "test") == 1.0
    assert measure_split(FRAMEWORK, lambda x: x * 0 + [1, 0], Path("/data"), "test") == 0.6
    assert asked == [("test", 256)] * 2


def test_measure_model_keeps_the_outputs_of_the_test_part(asked: list[Any], tmp_path: Path) -> None:
    folder = Baseline(tmp_path)
    found = measure_model(FRAMEWORK, None, Path("/data"), keep=folder)
    assert found == {"test_accuracy": 1.0, "validation_accuracy": 1.0}
    np.testing.assert_array_equal(folder.predictions(), X)


def test_measure_split_refuses_nan(asked: list[Any]) -> None:
    with pytest.raises(DataError, match=r"the model on the test part.* NaN for 1 of 2 samples"):
        measure_split(FRAMEWORK, lambda x: np.where(x == 3, np.nan, x), Path("/data"), "test")


def test_prepared_data_asks_for_the_parts_of_a_training(asked: list[Any]) -> None:
    data = PreparedData(Path("/data"))
    assert (data.samples, data.task.data.classes) == (5, ("a", "b"))
    assert data.train(4, shuffle_seed=3, augment="shift") == "train"
    assert data.validation(2) == "validation"
    mirrored = data.task.mirrored
    options = {"shuffle_seed": 3, "augment": "shift", "mirrored": mirrored, "worker": (0, 1)}
    assert asked == [("train", 4, options), ("validation", 2, {})]


def test_open_data_takes_a_directory_or_a_source(asked: list[Any]) -> None:
    data = open_data(Path("/data"))
    assert isinstance(data, PreparedData)
    assert open_data(data) is data


@pytest.mark.parametrize("workers", [2, 3])
def test_workers_rows_make_the_batches_of_one(workers: int) -> None:
    """Nothing is lost or doubled; a batch of fewer rows than workers is at each of them."""
    x = np.random.default_rng(0).random((17, 8, 8, 1), np.float32)
    labelled = Labelled(x=x, targets=np.arange(17))
    data = ArrayData(
        training=labelled,
        validating=labelled,
        task=task_for("classification", classes=list(map(str, range(17)))),
    )
    given: dict[str, Any] = {"shuffle_seed": 1, "augment": "flip_crop"}
    whole = list(data.train(8, **given).as_numpy_iterator())
    parts = []
    for index in range(workers):
        part = data.train(8, **given, worker=(index, workers))
        parts.append(list(part.as_numpy_iterator()))
    assert [len(labels) for _, labels in whole] == [8, 8, 1]
    for place, (images, labels) in enumerate(whole):
        rows = [part[place] for part in parts]
        if len(labels) < workers:
            rows = rows[:1]
            assert all(part[place][1].tolist() == labels.tolist() for part in parts)
        np.testing.assert_array_equal(np.concatenate([each[0] for each in rows]), images)
        np.testing.assert_array_equal(np.concatenate([each[1] for each in rows]), labels)
