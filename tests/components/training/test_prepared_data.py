"""What a training reads of a prepared data set, and what a model says of one part."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from qat_lib.errors import DataError
from qatline.components.data.labelled import Labelled
from qatline.components.training import prepared_data
from qatline.components.training.array_data import ArrayData
from qatline.components.training.prepared_data import (
    PreparedData,
    open_data,
    outputs_accuracy,
    predict_split,
    split_accuracy,
)

X = np.float32([[1, 0], [0, 1], [2, 0], [0, 2], [3, 1]])
Y = np.array([0, 1, 0, 1, 0])


class Identity:
    """A framework whose models answer with their images."""

    def predict(self, model: Any, batches: Iterable[np.ndarray]) -> np.ndarray:
        return np.concatenate([*batches])


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Put five samples of two classes in place of the reader; return who asked for what."""
    calls: list[Any] = []

    def numpy_batches(dataset: Path, split: str, size: int) -> Any:
        calls.append((split, size))
        return [(X[:3], Y[:3]), (X[3:], Y[3:])]

    def load_split(dataset: Path, split: str, *, raw: bool) -> Any:
        calls.append((split, raw))
        return None, Y

    def tf_dataset(dataset: Path, split: str, size: int, **options: Any) -> str:
        calls.append((split, size, options))
        return split

    info = SimpleNamespace(splits={"train": 5}, classes=["a", "b"])
    opened = SimpleNamespace(info=lambda: info)
    monkeypatch.setattr(prepared_data, "Dataset", lambda dataset: opened)
    monkeypatch.setattr(prepared_data, "numpy_batches", numpy_batches)
    monkeypatch.setattr(prepared_data, "load_split", load_split)
    monkeypatch.setattr(prepared_data, "tf_dataset", tf_dataset)
    return calls


def test_predict_split_gives_the_outputs_in_order(asked: list[Any]) -> None:
    framework: Any = Identity()
    np.testing.assert_array_equal(predict_split(framework, None, Path("/data"), "test"), X)
    assert asked == [("test", 256)]
    assert split_accuracy(framework, None, Path("/data"), "test") == 1.0


def test_outputs_accuracy_compares_with_the_labels(asked: list[Any]) -> None:
    assert outputs_accuracy(X, Path("/data"), "test") == 1.0
    assert outputs_accuracy(X[[0, 0, 0, 0, 0]], Path("/data"), "test") == 0.6
    assert asked == [("test", True)] * 2


def test_outputs_accuracy_refuses_nan(asked: list[Any]) -> None:
    with pytest.raises(DataError, match=r"the model on the test part.* NaN for 1 of 5 samples"):
        outputs_accuracy(np.where(X == 3, np.nan, X), Path("/data"), "test")


def test_prepared_data_asks_for_the_parts_of_a_training(asked: list[Any]) -> None:
    data = PreparedData(Path("/data"))
    assert (data.samples, data.classes) == (5, 2)
    assert data.train(4, shuffle_seed=3, augment="shift") == "train"
    assert data.validation(2) == "validation"
    options = {"shuffle_seed": 3, "augment": "shift", "worker": (0, 1)}
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
    data = ArrayData(training=labelled, validating=labelled, classes=17)
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
