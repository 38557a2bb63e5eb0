"""Callbacks of the user in both frameworks: calls, errors, and state after an interruption."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import keras
import pytest

from qat_lib.errors import ConfigError
from qat_lib.support.extras import missing_packages
from qatline.components.settings import QATSettings, TrainingSettings
from qatline.components.training.checkpoints import Checkpoint
from tests.components.training.linear import train

BOTH = [
    "keras",
    pytest.param(
        "torch",
        marks=pytest.mark.skipif(bool(missing_packages(["torch"])), reason="needs torch"),
    ),
]


class Recorder(keras.callbacks.Callback):
    """Records the logs of each epoch, ends the training or fails after some epochs."""

    logs: ClassVar[list[dict[str, float]]] = []

    def __init__(self, stop: int = 99, fail: int = 99) -> None:
        super().__init__()
        self.stop, self.fail, self.epochs = stop, fail, 0

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.epochs += 1
        self.logs.append({"epoch": epoch, "seen": self.epochs, **logs})
        if epoch + 1 == self.fail:
            raise RuntimeError("no more")
        if epoch + 1 == self.stop:
            self.model.stop_training = True


class Batches(Recorder):
    """Records the calls of batches, and ends the training in the second epoch's second batch."""

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.logs.append({"begin": batch})

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.logs.append({"end": batch, "loss": float(logs["loss"])})
        self.model.stop_training = self.epochs == 1 and batch == 1


class Remembering(Recorder):
    """Continues its count after an interruption."""

    def get_state(self) -> dict[str, Any]:
        return {"epochs": self.epochs}

    def set_state(self, state: dict[str, Any]) -> None:
        self.epochs = state["epochs"]


class Forgetful(Remembering):
    """Returns a state that no checkpoint can contain."""

    def get_state(self) -> Any:
        return {"epochs": object()}


def settings(name: str, kind: Any = TrainingSettings, **options: Any) -> Any:
    Recorder.logs.clear()
    callback = {"name": f"{__name__}:{name}", "options": options}
    return kind(epochs=4, batch_size=8, augment="none", callbacks=[callback])


@pytest.mark.parametrize("kind", [TrainingSettings, QATSettings])
@pytest.mark.parametrize("framework", BOTH)
def test_callbacks_see_and_end_epochs(framework: str, kind: Any) -> None:
    _, rows = train(framework, settings("Recorder", kind, stop=2), keep_best=kind is QATSettings)
    assert [log["epoch"] for log in Recorder.logs] == [0, 1]
    last, row = Recorder.logs[-1], rows[-1]
    assert last["loss"] == pytest.approx(row.loss)
    assert (last["val_loss"], last["val_accuracy"]) == (row.val_loss, row.val_accuracy)
    assert row.epoch == 2


@pytest.mark.parametrize("framework", BOTH)
def test_callbacks_see_and_end_batches(framework: str) -> None:
    _, rows = train(framework, settings("Batches"))
    first, second = (index for index, log in enumerate(Batches.logs) if "epoch" in log)
    batches = [next(iter(log.items())) for log in Batches.logs if "epoch" not in log]
    assert batches[:first] == [
        (name, batch) for batch in range(first // 2) for name in ("begin", "end")
    ]
    assert batches[first:] == [("begin", 0), ("end", 0), ("begin", 1), ("end", 1)]
    assert Batches.logs[first - 1]["loss"] == pytest.approx(rows[0].loss)
    assert (second, rows[-1].epoch) == (first + 5, 2)


@pytest.mark.parametrize("framework", BOTH)
def test_failing_callback_is_named(framework: str) -> None:
    with pytest.raises(ConfigError, match=r"qat.callbacks: '.*:Recorder' failed: Runtime.*no more"):
        train(framework, settings("Recorder", QATSettings, fail=1))


@pytest.mark.parametrize("framework", BOTH)
def test_other_objects_are_refused(framework: str) -> None:
    given = TrainingSettings(callbacks=["collections:Counter"])
    with pytest.raises(ConfigError, match=r"callbacks: 'collections:Counter' is a Counter"):
        train(framework, given)


def test_keras_callbacks_have_no_module() -> None:
    options = {"monitor": "val_accuracy", "mode": "max", "patience": 1}
    stopping = {"name": "EarlyStopping", "options": options}
    given = TrainingSettings(
        epochs=9, batch_size=8, augment="none", learning_rate=1e-9, callbacks=[stopping]
    )
    assert len(train("keras", given)[1]) == 2
    with pytest.raises(ConfigError, match=r"'keras.callbacks:EarlyStoping' can't be imported"):
        train("keras", TrainingSettings(callbacks=["EarlyStoping"]))


@pytest.mark.parametrize("framework", BOTH)
@pytest.mark.parametrize(("name", "seen"), [("Recorder", 1), ("Remembering", 3)])
def test_state_continues_after_an_interruption(
    framework: str, name: str, seen: int, tmp_path: Path, progress: Any
) -> None:
    checkpoint = Checkpoint(folder=tmp_path / "key", name="x", every=1, warn=progress.warn)
    with pytest.raises(ConfigError):
        train(framework, settings(name, fail=3), checkpoint=checkpoint)
    train(framework, settings(name), checkpoint=checkpoint, progress=progress)
    assert [log["epoch"] for log in Recorder.logs] == [2, 3]
    assert Recorder.logs[0]["seen"] == seen
    lost = [text for text in progress.warnings if "start again after the interruption" in text]
    assert bool(lost) == (name == "Recorder")


def test_state_of_other_types_is_refused(tmp_path: Path) -> None:
    checkpoint = Checkpoint(folder=tmp_path / "key", name="x", every=1, warn=print)
    with pytest.raises(ConfigError, match=r"get_state of '.*Forgetful' returned dict"):
        train("keras", settings("Forgetful"), checkpoint=checkpoint)
