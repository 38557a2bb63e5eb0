"""Classification against cases small enough to count by hand."""

from __future__ import annotations

import numpy as np
import pytest

from qat_lib.errors import DataError, UnsupportedModelError
from qatline.components.client.decoding import softmax
from qatline.components.tasks import Task, check_numbers, joined, task_for
from qatline.components.tasks.classification import (
    are_distributions,
    calibration_error,
)

LABELS = np.array([0, 1, 1, 2])
OUTPUTS = np.array([[3.0, 1.0, 0.0], [2.0, 1.0, 0.0], [0.0, 5.0, 1.0], [0.0, 1.0, 0.5]])


def classification(*classes: str) -> Task:
    """Return the task for some class names."""
    return task_for("classification", classes=classes or ("a", "b", "c"))


def test_accuracy_counts_the_largest_output() -> None:
    task = classification()
    assert task.summarize(task.measure(OUTPUTS, LABELS))["accuracy"] == 0.5
    assert [metric.name for metric in task.metrics] == ["accuracy", "calibration_error"]


def test_top5_is_measured_for_more_than_five_classes() -> None:
    task = classification(*"abcdef")
    outputs = np.tile(np.arange(6.0), (2, 1))
    found = task.summarize(task.measure(outputs, np.array([0, 1])))
    assert (found["accuracy"], found["top5"]) == (0.0, 0.5)


def test_confusion_has_labels_as_rows() -> None:
    task = classification()
    found = task.details(task.measure(OUTPUTS, LABELS))["confusion"]
    assert found == [[1, 0, 0], [1, 1, 0], [0, 1, 0]]


def test_groups_are_classes_and_absent_ones_have_no_value() -> None:
    task = classification("a", "b", "c", "none")
    outputs = np.pad(OUTPUTS, ((0, 0), (0, 1)))
    found = task.groups(task.measure(outputs, LABELS))
    assert [(group.name, group.samples, group.value) for group in found] == [
        ("a", 1, 1.0), ("b", 2, 0.5), ("c", 1, 0.0), ("none", 0, None),
    ]  # fmt: skip


def test_distributions_have_a_sum_of_one() -> None:
    outputs = np.array([[0.25, 0.75], [1.0, 0.0], [0.5, 0.6], [-0.5, 1.5], [1.0, -np.inf]])
    assert are_distributions(outputs).tolist() == [True, True, False, False, True]


@pytest.mark.parametrize("name", ["classification", "multilabel"])
def test_one_batch_does_not_decide_about_probabilities(name: str) -> None:
    """The first batch of these logits looks like probabilities."""
    logits = np.array([[0.2, 0.8], [0.9, 0.1], [-3.0, 2.0], [4.0, -1.0]])
    targets = np.array([1, 0, 1, 0])
    if name == "multilabel":
        targets = np.eye(2)[targets]
    task = task_for(name, classes=("a", "b"), target_shape=targets.shape[1:])
    whole = task.summarize(task.measure(logits, targets))
    batches = [slice(0, 2), slice(2, 4)]
    parts = [task.measure(logits[rows], targets[rows]) for rows in batches]
    assert task.summarize(joined(parts)) == whole
    shifted = logits + 0.01
    differences = task.differences(shifted, logits)
    same = task.same(shifted, logits)
    task.observe(logits)
    found = [task.differences(shifted[rows], logits[rows]) for rows in batches]
    np.testing.assert_allclose(np.concatenate(found), differences)
    np.testing.assert_array_equal(
        np.concatenate([task.same(shifted[rows], logits[rows]) for rows in batches]), same
    )
    probabilities = 1 / (1 + np.exp(-logits))
    if name == "classification":
        probabilities = softmax(logits)
    again = task_for(name, classes=("a", "b"), target_shape=targets.shape[1:])
    again.observe(probabilities)
    expected = pytest.approx(list(whole.values()))
    assert list(again.summarize(again.measure(probabilities, targets)).values()) == expected


def test_calibration_error_of_known_confidences() -> None:
    # Two samples at confidence 0.9, one right: |0.5 - 0.9|. Two at 0.6, both right: |1 - 0.6|.
    confidence, right = np.array([0.9, 0.9, 0.6, 0.6]), np.array([True, False, True, True])
    assert calibration_error(confidence, right) == pytest.approx(0.4)
    assert calibration_error(np.ones(3), np.ones(3, bool)) == pytest.approx(0.0)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_check_numbers_counts_samples_with_nan(dtype: type) -> None:
    outputs = OUTPUTS.astype(dtype)
    check_numbers(outputs, "the engine")
    check_numbers(np.where(outputs > 0, -np.inf, outputs), "the engine")  # masked classes
    outputs[1], outputs[2, 0] = np.nan, np.nan
    with pytest.raises(DataError, match=r"the engine\. Its outputs are NaN for 2 of 4 samples"):
        check_numbers(outputs, "the engine")


def test_outputs_agree_with_themselves_and_not_with_their_opposite() -> None:
    task = classification()
    assert task.same(OUTPUTS, OUTPUTS).tolist() == [1.0] * 4
    assert task.differences(OUTPUTS, OUTPUTS).max() == 0.0
    assert task.same(OUTPUTS, -OUTPUTS).max() == 0.0
    assert task.differences(OUTPUTS, -OUTPUTS).min() > 0.1


def test_outputs_of_other_classes_are_matched_by_name() -> None:
    task = classification()
    outputs = np.array([[0.0, 9.0, 1.0, 2.0], [9.0, 0.0, 1.0, 2.0]])
    aligned = task.align(outputs, ("c", "a", "b", "unknown"))
    assert task.measure(aligned, np.array([0, 2]))["accuracy"].tolist() == [True, True]
    wrong = task.align(np.array([[0.0, 0.0, 0.0, 9.0]]), ("c", "a", "b", "unknown"))
    assert not task.measure(wrong, np.array([0]))["accuracy"].any()
    with pytest.raises(DataError, match="it gives 4 classes, 3 are known"):
        task.align(outputs, ())


def test_groups_are_tested_with_a_correction_for_their_number() -> None:
    task = classification("a", "b", "absent")
    right = np.array([True] * 10 + [False] * 10)
    better = np.array([True] * 16 + [False] * 4)
    labels = np.repeat([0, 1], 20)
    candidate = {"label": labels, "accuracy": np.concatenate([right, better])}
    champion = {"label": labels, "accuracy": np.concatenate([better, better])}
    tests = task.compare_groups(candidate, champion)
    assert [test.name for test in tests] == ["a", "b", "absent"]
    assert (tests[2].samples, tests[2].candidate, tests[2].p_worse) == (0, None, None)
    assert tests[0].p_worse == pytest.approx(2 / 64)
    assert tests[1].p_worse == 1.0
    assert (tests[0].candidate, tests[0].champion) == (0.5, 0.8)


def answering(counts: list[list[int]]) -> tuple[Task, np.ndarray, np.ndarray]:
    """Return task, outputs and labels with a confusion matrix."""
    matrix = np.array(counts)
    cells = np.repeat(np.arange(matrix.size), matrix.ravel())
    classes = tuple(map(str, range(len(matrix))))
    return classification(*classes), np.eye(len(matrix))[cells % len(matrix)], cells // len(matrix)


def chance(counts: list[list[int]]) -> tuple[float, float, float]:
    """Return p-value, accuracy and chance of predictions with a confusion matrix."""
    task, outputs, labels = answering(counts)
    samples = task.measure(outputs, labels)
    test = task.compare_with_chance(samples, samples)
    assert test.p_value is not None
    assert test.value is not None
    assert test.chance is not None
    return test.p_value, test.value, test.chance


def test_chance_of_a_constant_answer_is_its_own_accuracy() -> None:
    assert chance([[0, 90], [0, 10]]) == (1.0, 0.1, pytest.approx(0.1))


def test_chance_is_beaten_on_rare_classes_too() -> None:
    assert chance([[70, 20], [1, 9]])[0] < 0.01  # less accurate than always "0"


def test_chance_has_a_p_value_above_zero() -> None:
    """The observed labels are one of the permutations, so their share is at least 1 in 2000."""
    assert chance((np.eye(10, dtype=np.int64) * 30).tolist())[0] == 1 / 2000


def test_chance_keeps_its_level() -> None:
    generator = np.random.default_rng(2)
    called = 0
    for _ in range(60):
        counts = np.zeros((4, 4), np.int64)
        np.add.at(counts, tuple(generator.integers(0, 4, (2, 80))), 1)
        called += chance(counts.tolist())[0] <= 0.05
    assert called <= 8


@pytest.mark.parametrize(
    ("targets", "problem"),
    [
        (np.array([0.0, 0.5]), "expected whole numbers, received 0.5 for sample 1"),
        (np.array([[0, 1], [1, 0]]), "One-hot labels"),
        (np.array(["a", "b"]), "expected integers"),
        (np.array([0, 3]), r"expected 0 to 2 \(3 classes\), received 3 for sample 1"),
        (np.array([0, -1]), "received -1 for sample 1"),
    ],
)
def test_targets_must_be_class_indices(targets: np.ndarray, problem: str) -> None:
    with pytest.raises(DataError, match=problem):
        classification().check_targets(targets, "x.npz: train")


def test_outputs_need_one_value_per_class() -> None:
    task = classification()
    task.check_outputs({"logits": (3,)}, "net")
    with pytest.raises(UnsupportedModelError, match=r"outputs of shape \(4,\), but the data has 3"):
        task.check_outputs({"logits": (4,)}, "net")
    with pytest.raises(UnsupportedModelError, match="'net' has 2"):
        task.check_outputs({"a": (3,), "b": (3,)}, "net")
