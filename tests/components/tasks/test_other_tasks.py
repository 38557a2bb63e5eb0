"""Regression, multi-label and segmentation: metrics against libraries, targets, user's tasks."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from qat_lib.errors import ConfigError, DataError, UnsupportedModelError
from qatline.components.artifacts.data_info import InputInfo
from qatline.components.tasks import TASKS, Metric, Task, make_task, task_for
from qatline.components.testing import check_task


def random_case(name: str, seed: int) -> tuple[Task, np.ndarray, np.ndarray]:
    """Return a task with random outputs and targets."""
    generator = np.random.default_rng(seed)
    if name == "regression":
        targets = generator.normal(size=(60, 2)).astype(np.float32)
        outputs = targets + generator.normal(scale=0.5, size=targets.shape)
        return task_for(name, target_shape=(2,)), outputs, targets
    if name == "multilabel":
        targets = (generator.random((60, 4)) < 0.3).astype(np.float32)
        outputs = targets * 2 - 1 + generator.normal(size=targets.shape)
        return task_for(name, classes=tuple("abcd"), target_shape=(4,)), outputs, targets
    if name == "segmentation":
        targets = generator.integers(0, 3, (24, 6, 5)).astype(np.uint8)
        outputs = np.eye(3)[targets] + generator.normal(scale=0.6, size=(*targets.shape, 3))
        return task_for(name, classes=tuple("abc"), target_shape=(6, 5)), outputs, targets
    if name == "detection":
        return detection_case(generator)
    targets = generator.integers(0, 3, 60)
    outputs = np.eye(3)[targets] + generator.normal(scale=0.6, size=(60, 3))
    return task_for(name, classes=tuple("abc")), outputs, targets


def detection_case(generator: np.random.Generator) -> tuple[Task, np.ndarray, np.ndarray]:
    """Return maps of 4x5 locations at 8 pixels that nearly predict two boxes per image."""
    inputs = {"x": InputInfo(shape=(32, 40, 3), dtype="uint8")}
    task = task_for("detection", classes=tuple("abc"), target_shape=(3, 6), inputs=inputs)
    targets = np.full((24, 3, 6), [0, 0, 1, 1, -1, 0], np.float32)
    outputs = np.full((24, 4, 5, 7), -3.0)
    for image in range(24):
        for box, place in enumerate(generator.choice(20, 2, replace=False)):
            row, column = divmod(place, 5)
            center, size = np.array([column, row]) * 8 + 4, generator.uniform(6, 12, 2)
            label = generator.integers(0, 3)
            targets[image, box] = [*(center - size / 2), *(center + size / 2), label, 0]
            raw = np.log(np.expm1(size / 8 / 4))  # the inverse of a softplus
            outputs[image, row, column, label] = 3
            outputs[image, row, column, 3:] = [0, 0, *raw]
    return task, outputs + generator.normal(scale=0.1, size=outputs.shape), targets


@pytest.mark.parametrize("seed", range(3))
def test_regression_equals_scikit_learn(seed: int) -> None:
    from sklearn.metrics import mean_absolute_error, r2_score

    task, outputs, targets = random_case("regression", seed)
    found = task.summarize(task.measure(outputs, targets))
    assert found["mae"] == pytest.approx(mean_absolute_error(targets, outputs), rel=1e-6)
    assert found["r2"] == pytest.approx(r2_score(targets, outputs), rel=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_multilabel_equals_scikit_learn(seed: int) -> None:
    from sklearn.metrics import average_precision_score, f1_score

    task, outputs, targets = random_case("multilabel", seed)
    found = task.summarize(task.measure(outputs, targets))
    precision = average_precision_score(targets, outputs, average="macro")
    assert found["mean_average_precision"] == pytest.approx(precision)
    f1 = f1_score(targets, outputs > 0, average="samples", zero_division=1.0)
    assert found["f1"] == pytest.approx(f1)


@pytest.mark.parametrize("seed", range(3))
def test_segmentation_equals_keras(seed: int) -> None:
    import keras

    task, outputs, targets = random_case("segmentation", seed)
    targets[0, :3] = 255
    found = task.summarize(task.measure(outputs, targets))
    metric = keras.metrics.MeanIoU(num_classes=3, ignore_class=255)
    metric.update_state(targets, outputs.argmax(axis=-1))
    assert found["mean_iou"] == pytest.approx(float(metric.result()), abs=1e-6)
    valid = targets != 255
    accuracy = (outputs.argmax(axis=-1) == targets)[valid].mean()
    assert found["pixel_accuracy"] == pytest.approx(accuracy)


def test_a_class_without_samples_is_not_measured() -> None:
    task, outputs, targets = random_case("segmentation", 0)
    targets[targets == 2] = 1
    assert [group.value is None for group in task.groups(task.measure(outputs, targets))] == [
        False, False, True,
    ]  # fmt: skip
    task, outputs, targets = random_case("multilabel", 0)
    targets[:, 3] = 0
    assert task.groups(task.measure(outputs, targets))[3].value is None


@pytest.mark.matrix
@pytest.mark.parametrize("name", TASKS)
def test_planted_candidates_are_told_apart(name: str) -> None:
    """The paired test finds a better and a worse candidate, and no difference between equals."""
    task, outputs, targets = random_case(name, 1)
    worse = outputs + np.random.default_rng(9).normal(scale=1.5, size=outputs.shape)
    good, bad = task.measure(outputs, targets), task.measure(worse, targets)
    assert task.compare(good, bad).p_better <= 0.05
    assert task.compare(bad, good).p_worse <= 0.05
    equal = task.compare(good, good)
    assert (equal.p_better, equal.p_worse, equal.difference) == (1.0, 1.0, 0.0)


@pytest.mark.parametrize("name", TASKS)
def test_outputs_beat_chance_and_constant_ones_do_not(name: str) -> None:
    task, outputs, targets = random_case(name, 2)
    shifted = np.roll(targets, 1, axis=0)
    test = task.compare_with_chance(task.measure(outputs, targets), task.measure(outputs, shifted))
    assert test.p_value <= 0.05
    constant = np.broadcast_to(outputs.mean(axis=0), outputs.shape)
    test = task.compare_with_chance(
        task.measure(constant, targets), task.measure(constant, shifted)
    )
    assert test.p_value > 0.05


@pytest.mark.parametrize("name", TASKS)
def test_built_in_tasks_pass_the_checks_of_extensions(name: str) -> None:
    check_task(*random_case(name, 4))


@pytest.mark.parametrize(
    ("name", "targets", "problem"),
    [
        ("regression", np.array([1.0, np.nan]), "finite targets, received nan for sample 1"),
        ("regression", np.zeros((2, 2, 2)), "received float64 (2, 2, 2)"),
        ("multilabel", np.array([[0, 1], [2, 0]]), "0 or 1 for each class, received [2 0]"),
        ("multilabel", np.array([0, 1]), "received int64 (2,)"),
        ("segmentation", np.full((1, 2, 2), 7), "from 0 to 2 or 255 (ignored), received 7 in mask 0"),
        ("segmentation", np.zeros((2, 2)), "received float64 (2, 2)"),
    ],
)  # fmt: skip
def test_wrong_targets_are_named(name: str, targets: np.ndarray, problem: str) -> None:
    task = task_for(name, classes=tuple("abc"), target_shape=(3,))
    with pytest.raises(DataError) as error:
        task.check_targets(targets, "x.npz: train")
    assert problem in str(error.value)
    assert str(error.value).startswith("x.npz: train")


@pytest.mark.parametrize(
    ("name", "shape", "right"),
    [
        ("regression", (3,), (2,)),
        ("multilabel", (3,), (2,)),
        ("segmentation", (8, 8, 4), (8, 8, 3)),
    ],
)
def test_outputs_must_fit_the_targets(name: str, shape: Any, right: Any) -> None:
    target = right[:2] if name == "segmentation" else right
    task = task_for(name, classes=tuple("abc"), target_shape=target)
    task.check_outputs({"out": right}, "net")
    with pytest.raises(UnsupportedModelError, match="'net'"):
        task.check_outputs({"out": shape}, "net")


def test_a_mean_of_nothing_is_no_number() -> None:
    task = task_for("segmentation", classes=tuple("abc"), target_shape=(2, 2))
    found = task.summarize(task.measure(np.zeros((1, 2, 2, 3)), np.full((1, 2, 2), 255)))
    assert np.isnan(found["mean_iou"])


class Counting(Task):
    """A user's task: the number of objects in an image."""

    metrics = (Metric(name="count_error", higher_is_better=False),)

    def loss(self, targets: Any, outputs: Any) -> Any:
        return abs(outputs[:, 0] - targets)

    def decode(self, outputs: Any) -> Any:
        return outputs[:, 0].round()

    def score(self, predictions: Any, targets: np.ndarray) -> np.ndarray:
        return np.abs(predictions - targets)


def test_a_users_task_needs_three_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys
    import types

    module = types.ModuleType("my_task")
    module.Counting = Counting  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "my_task", module)
    task = task_for("my_task:Counting")
    targets = np.arange(30.0)
    exact, off = targets[:, None], targets[:, None] + 1.0
    good, bad = task.measure(exact, targets), task.measure(off, targets)
    assert task.summarize(bad) == {"count_error": 1.0}
    assert task.compare(good, bad).p_better == 1 / 2000
    assert task.compare_groups(good, bad) == []
    check_task(task, exact, targets)
    assert not task.distills
    assert [name for name in TASKS if not make_task(name, {}).distills] == ["detection"]


def test_signals_are_drawn_and_predictions_described() -> None:
    task, signals = Counting(), np.zeros((2, 40, 3), np.float32)
    signals[1, :, 1] = np.linspace(0, 1, 40)
    picture = task.picture({"steps": signals}, np.zeros(2), [], 1)
    assert picture is not None
    assert picture.shape == (160, 160, 3)
    lines = (picture < 1).any(axis=2)
    assert lines[10:150].any(axis=1).all()  # the ramp goes from the bottom to the top
    assert lines[:, 10:150].any(axis=0).all()
    assert task.picture(signals[:, 0], np.zeros(2), [], 1) is None
    assert task.describe(np.array([[0.2], [2.7]]), 1) == "3"


class Upside(Counting):
    """A task with the wrong direction."""

    metrics = (Metric(name="count_error"),)


class ByBatch(Counting):
    """A task whose scores depend on the batch."""

    def score(self, predictions: Any, targets: np.ndarray) -> np.ndarray:
        return np.abs(predictions - targets) / len(targets)


class Short(Counting):
    """A task with one score for all samples."""

    def score(self, predictions: Any, targets: np.ndarray) -> np.ndarray:
        return np.abs(predictions - targets).mean(keepdims=True)


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        (Upside, "Is higher_is_better=True right"),
        (ByBatch, "must not depend on its batch"),
        (Short, "for each of 30 samples, received 1"),
    ],
)
def test_checks_find_what_is_wrong_with_a_task(kind: type[Task], problem: str) -> None:
    targets = np.arange(30.0)
    with pytest.raises(AssertionError, match=re.escape(problem)):
        check_task(kind(), targets[:, None] + 0.25 * (targets[:, None] % 3), targets)


@pytest.mark.parametrize(
    ("name", "options", "problem"),
    [
        (
            "regresion",
            {},
            "expected classification, multilabel, regression, segmentation, detection or module",
        ),
        ("multilabel", {"threshold": 2}, "expected 0 < threshold < 1, received 2"),
        ("regression", {"alpha": 1}, "takes none, received alpha"),
        ("builtins:dict", {}, "is a dict, expected a subclass"),
        ("no_such_module:Task", {}, "can't be imported"),
    ],
)
def test_wrong_names_and_options_are_named(
    name: str, options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        make_task(name, options)
