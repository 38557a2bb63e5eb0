"""Fine-tuning on arrays, and that it hands everything on to the one training."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

from qatline.components.artifacts.models import Epoch
from qatline.components.data.labelled import Labelled
from qatline.components.settings import QATSettings
from qatline.components.support.events import NullProgress
from qatline.components.tasks import task_for
from qatline.components.training import fitting
from qatline.components.training.array_data import ArrayData
from qatline.components.training.finetuning import final_epoch, finetune

X = np.random.default_rng(0).normal(size=(40, 3))
Y = (X.sum(axis=1) > 0).astype(np.int64)
DATA = ArrayData(
    training=Labelled(x=X[:30], targets=Y[:30]),
    validating=Labelled(x=X[30:], targets=Y[30:]),
    task=task_for("classification", classes=["0", "1"]),
)


def test_array_data_gives_shuffled_and_plain_batches() -> None:
    assert (DATA.samples, DATA.task.data.classes) == (30, ("0", "1"))
    batches = list(DATA.train(16, shuffle_seed=1, augment="none").as_numpy_iterator())
    assert [len(x) for x, _ in batches] == [16, 14]
    seen = np.concatenate([x for x, _ in batches])
    assert seen.dtype == np.float32
    assert np.any(seen[:, 0] != X[:30, 0].astype(np.float32))
    np.testing.assert_array_equal(np.sort(seen[:, 0]), np.sort(X[:30, 0].astype(np.float32)))
    ((x, y),) = DATA.validation(16).as_numpy_iterator()
    np.testing.assert_array_equal(x, X[30:].astype(np.float32))
    np.testing.assert_array_equal(y, Y[30:])


@pytest.mark.matrix
def test_finetune_trains_on_arrays_and_keeps_the_best_epoch() -> None:
    keras.utils.set_random_seed(0)
    x = keras.Input((3,))
    model = keras.Model(x, keras.layers.Dense(2)(x))
    settings = QATSettings(epochs=20, batch_size=8, learning_rate=0.1, augment="none")
    history = finetune(model, DATA, settings, seed=0, progress=NullProgress())
    assert [epoch.epoch for epoch in history] == list(range(21))
    kept = final_epoch(history)
    assert kept.epoch > 0
    assert kept.val_loss == min(epoch.val_loss for epoch in history)


def test_finetune_hands_on_what_the_settings_say(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def fit(model: Any, data: Any, settings: Any, **options: Any) -> list[Epoch]:
        asked.update(options)
        return []

    monkeypatch.setattr(fitting, "fit", fit)
    settings = QATSettings(distillation=0.25)
    finetune("model", DATA, settings, seed=4, progress=NullProgress(), teacher="teacher")
    asked.pop("progress")
    assert asked == {
        "seed": 4,
        "keep_best": True,
        "teacher": "teacher",
        "distillation": 0.25,
        "oscillation": None,
        "checkpoint": None,
    }
