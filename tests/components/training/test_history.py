"""Which epoch's weights a training keeps."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from qatline.components.artifacts.models import Epoch
from qatline.components.settings import EarlyStoppingSettings, TrainingSettings
from qatline.components.support.events import NullProgress
from qatline.components.tasks import task_for
from qatline.components.training.checkpoints import Checkpoint
from qatline.components.training.history import CLEAR, History, is_clear_gain
from tests.components.training.linear import X, Y, kernel_of, train
from tests.components.training.test_user_callbacks import BOTH

TWO = task_for("classification", classes=["0", "1"])


@pytest.mark.parametrize(
    ("gain", "clear"),
    [
        (np.full(50, 0.01), True),  # a little, everywhere
        (np.zeros(50), False),
        (np.full(50, -0.01), False),
        (np.eye(1, 50).ravel(), False),  # one sample alone
        (np.eye(1, 50).ravel() + 0.02, True),
        (np.array([0.5]), False),  # of one sample nothing is known
        (np.full(50, np.nan), False),
    ],
)
def test_a_gain_counts_when_chance_does_not_explain_it(gain: np.ndarray, clear: bool) -> None:
    before = np.ones_like(gain)
    assert is_clear_gain(before, before - gain) is clear


class Scripted:
    """A training of one weight, whose losses the test tells."""

    learning_rate = 0.5

    def __init__(self, losses: list[np.ndarray]) -> None:
        self.script = iter(losses)
        self.mark = 0

    def inference(self) -> AbstractContextManager[None]:
        return nullcontext()

    def losses(self, y: Any, outputs: np.ndarray) -> np.ndarray:
        return next(self.script)

    def outputs(self, x: Any) -> np.ndarray:
        return np.stack([np.zeros(len(x)), np.ones(len(x))], axis=1)

    def get_weights(self) -> int:
        return self.mark

    def set_weights(self, weights: int) -> None:
        self.mark = weights


def kept_epoch(*losses: np.ndarray, keep_best: bool = True) -> tuple[int, list[Epoch]]:
    model = Scripted(list(losses))
    validation = [(np.zeros((4, 1)), np.array([1, 1, 0, 1]))]
    history = History(
        model, TWO, validation, 1, len(losses) - 1, NullProgress(), keep_best=keep_best
    )
    history.start()
    for epoch in range(1, len(losses)):
        model.mark = epoch
        history.on_epoch_begin(epoch - 1)
        history.on_epoch_end(epoch - 1, {"loss": 1.0, "accuracy": 0.5, "other": 3.0})
    history.restore_kept()
    return model.mark, history.rows


def test_the_best_epoch_is_kept_where_it_is_clearly_better() -> None:
    start = np.array([1.0, 2.0, 1.0, 2.0])
    mark, rows = kept_epoch(start, start - 0.1, start - 0.3, start - 0.2)
    assert mark == 2
    assert [row.kept for row in rows] == [0, 0, 1, 0]
    assert rows[2].val_loss == pytest.approx(1.2)
    assert rows[0].to_dict().keys() == {
        "epoch",
        "val_loss",
        "val_accuracy",
        "lr",
        "seconds",
        "kept",
    }
    assert rows[1].val_accuracy == 0.75
    assert rows[1].loss == 1.0


def test_luck_on_one_sample_keeps_the_model_as_it_came() -> None:
    start = np.array([1.0, 2.0, 1.0, 9.0])
    mark, rows = kept_epoch(start, np.array([1.0, 2.0, 1.0, 1.0]), np.array([1.1, 2.1, 1.1, 5.0]))
    assert mark == 0
    assert [row.kept for row in rows] == [1, 0, 0]


def test_an_epoch_without_a_finite_loss_is_never_kept() -> None:
    assert kept_epoch(np.ones(4), np.full(4, np.nan), np.full(4, 0.5))[0] == 2


def test_without_a_choice_the_last_weights_stay() -> None:
    mark, rows = kept_epoch(np.ones(4), np.zeros(4), np.full(4, 7.0), keep_best=False)
    assert mark == 2
    assert not any("kept" in row.to_dict() for row in rows)


@pytest.mark.parametrize(("errors", "clear"), [(1.2, False), (1.6, False), (1.7, True)])
def test_is_clear_gain_is_a_one_sided_test_at_five_percent(errors: float, clear: bool) -> None:
    spread = np.array([-1.0, 1.0, -1.0, 1.0])
    error = spread.std(ddof=1) / 2  # of the mean of four
    before = np.full(4, 3.0)
    assert is_clear_gain(before, before - (spread + errors * error)) is clear


def test_history_counts_the_batches_of_all_epochs(progress: Any) -> None:
    history = History(Scripted([]), TWO, [], 3, 4, progress, keep_best=False)
    history.on_train_batch_end(0, {"loss": np.float32(0.5), "accuracy": 0.25, "other": 1.0})
    history.on_train_batch_end(1)
    assert progress.updates == [("training", 1, 12), ("training", 2, 12)]


def test_history_tells_loss_and_accuracy_of_each_batch() -> None:
    told: list[dict[str, float]] = []
    progress: Any = SimpleNamespace(update=lambda *counts, **numbers: told.append(numbers))
    history = History(Scripted([]), TWO, [], 1, 1, progress, keep_best=False)
    history.on_train_batch_end(0, {"loss": np.float32(0.5), "accuracy": 0.25, "other": 1.0})
    history.on_train_batch_end(1)
    assert told == [{"loss": 0.5, "accuracy": 0.25}, {}]


def test_history_numbers_epochs_and_measures_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10.0, 32.5, 40.0, 124.0])
    monkeypatch.setattr("qatline.components.training.history.time.monotonic", lambda: next(clock))
    _, rows = kept_epoch(np.ones(4), np.ones(4), np.ones(4))
    assert [(row.epoch, row.seconds) for row in rows] == [(0, 0.0), (1, 22.5), (2, 84.0)]
    assert {row.lr for row in rows} == {0.5}
    assert "loss" not in rows[0].to_dict()


def test_history_takes_an_epoch_without_logs() -> None:
    model = Scripted([np.ones(2)])
    history = History(
        model, TWO, [(np.zeros((2, 1)), np.array([1, 0]))], 1, 1, NullProgress(), keep_best=False
    )
    history.on_epoch_begin(0)
    history.on_epoch_end(0)
    assert history.rows[0].to_dict().keys() == {
        "epoch",
        "val_loss",
        "val_accuracy",
        "lr",
        "seconds",
    }
    assert history.rows[0].val_accuracy == 0.5
    assert history.kept is None


def test_each_epoch_says_what_its_gain_was_tested_against() -> None:
    start = np.array([1.0, 2.0, 1.0, 2.0])
    lower = start - np.array([0.1, 0.3, 0.1, 0.3])
    _, rows = kept_epoch(start, lower, start + 0.1)
    assert (rows[0].gain, rows[0].gain_bound) == (None, None)
    assert rows[1].gain == pytest.approx(0.2)
    assert rows[1].gain_bound == pytest.approx(CLEAR * np.std([1, 3, 1, 3], ddof=1) * 0.1 / 2)
    assert rows[2].gain == pytest.approx(-0.1)
    _, rows = kept_epoch(start, lower, keep_best=False)
    assert rows[1].gain is None


def test_epochs_are_judged_by_their_candidate() -> None:
    model = Scripted([np.array([2.0, 1.0]), np.array([1.0, 0.0])])

    @contextmanager
    def candidate() -> Iterator[None]:
        before, model.mark = model.mark, 40 + model.mark
        yield
        model.mark = before

    validation = [(np.zeros((2, 1)), np.array([1, 1]))]
    history = History(
        model, TWO, validation, 1, 1, NullProgress(), keep_best=True, candidate=candidate
    )
    history.start()
    model.mark = 2
    history.on_epoch_begin()
    history.on_epoch_end(0)
    assert model.mark == 2
    history.restore_kept()
    assert model.mark == 42


@pytest.mark.parametrize(
    ("task", "values", "over"),
    [
        ("classification", [0.5, 0.6, 0.5, 0.6], True),  # equal is no gain
        ("classification", [0.5, 0.6, 0.5, 0.7], False),
        ("classification", [0.5, 0.6, 0.61, 0.62], True),  # less than min_delta
        ("regression", [0.5, 0.6, 0.6], True),
        ("regression", [0.5, 0.6, 0.4], False),
        ("regression", [None, None], True),
        ("regression", [], False),
    ],
)
def test_early_stopping_follows_the_metrics_direction(
    task: str, values: list[float | None], over: bool
) -> None:
    meaning = task_for(task, classes=["0", "1"])
    stopping = EarlyStoppingSettings(patience=2, min_delta=0.05)
    history = History(
        *(Scripted([]), meaning, [], 1, 9, NullProgress()),
        keep_best=False,
        early_stopping=stopping,
    )
    for value in values:
        measured = {} if value is None else {f"val_{meaning.primary.name}": value}
        history.rows.append(Epoch(epoch=1.0, val_loss=1.0, **measured))
    assert history.is_over is over


@pytest.mark.parametrize("framework", BOTH)
def test_early_stopping_keeps_the_best_weights(framework: str, tmp_path: Path) -> None:
    settings = TrainingSettings(
        epochs=40,
        batch_size=8,
        optimizer="sgd",
        learning_rate=3.0,
        schedule="constant",
        augment="none",
        early_stopping={"patience": 2},
    )
    checkpoint = Checkpoint(folder=tmp_path / "key", name="x", every=1, warn=print)
    model, rows = train(framework, settings, checkpoint=checkpoint)
    values = [row.validation("accuracy") for row in rows]
    best = int(np.argmax(values))
    assert len(rows) == best + 3 < 40
    assert [row.kept for row in rows] == [float(index == best) for index in range(len(rows))]
    again, repeated = train(framework, settings, checkpoint=checkpoint)
    assert len(repeated) == len(rows)
    np.testing.assert_array_equal(kernel_of(again), kernel_of(model))
    if framework == "keras":
        right = model.predict(X[25:], verbose=0).argmax(axis=1) == Y[25:]
        assert right.mean() == pytest.approx(max(values))
