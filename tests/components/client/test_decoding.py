"""Answers from outputs, as the tasks themselves decode them."""

from __future__ import annotations

import json

import numpy as np
import pytest

from qatline.components.artifacts.data_info import InputInfo
from qatline.components.client.decoding import (
    Levels,
    answers,
    box_of,
    overlaps,
    softmax,
    suppress,
)
from qatline.components.tasks import Task, task_for

OUTPUTS = np.random.default_rng(0).normal(0, 2, (6, 3)).astype(np.float32)


def suppressed_one_by_one(boxes: np.ndarray, scores: np.ndarray, labels: np.ndarray) -> list[int]:
    """Return the kept boxes of one image by the definition."""
    kept: list[int] = []
    for index in np.argsort(-scores, kind="stable"):
        rivals = [other for other in kept if labels[other] == labels[index]]
        if all(overlaps(boxes[index], boxes[other]) <= 0.5 for other in rivals):
            kept.append(int(index))
    return kept


def test_suppress_keeps_the_best_of_overlapping_boxes() -> None:
    generator = np.random.default_rng(0)
    low = generator.uniform(0, 30, (5, 40, 2))
    boxes = np.concatenate([low, low + generator.uniform(5, 20, low.shape)], axis=-1)
    scores, labels = generator.random((5, 40)), generator.integers(0, 3, (5, 40))
    found = suppress(boxes, scores, labels, iou=0.5, most=40)
    for image in range(5):
        kept = suppressed_one_by_one(boxes[image], scores[image], labels[image])
        rows = np.column_stack([boxes[image], scores[image], labels[image]])[kept]
        np.testing.assert_array_equal(found[image, : len(kept)], rows)
        assert (found[image, len(kept) :, 5] == -1).all()
    few = suppress(boxes, scores, labels, iou=0.5, most=3)
    np.testing.assert_array_equal(few, found[:, :3])


def test_levels_divide_the_image_and_the_sizes_of_boxes() -> None:
    levels = Levels([(3, 4), (2, 2)], (24, 32))
    assert levels.centers.shape == (16, 2)
    assert levels.centers[[0, 5, 12, 15]].tolist() == [[4, 4], [12, 12], [8, 6], [24, 18]]
    assert levels.strides[[0, 12]].tolist() == [[8, 8], [16, 12]]
    assert (levels.smallest[0], levels.largest[0]) == (0, 64)
    assert (levels.smallest[12], levels.largest[12]) == (64, np.inf)


def test_box_of_is_centre_and_size() -> None:
    raw = np.array([0.5, -1.0, np.log(np.expm1(1.0)), np.log(np.expm1(0.25))])
    found = box_of(raw, np.array([20.0, 20.0]), np.array([8.0, 8.0]))
    np.testing.assert_allclose(found, [8, 8, 40, 16])


def decoded(task: Task, outputs: dict[str, np.ndarray], probabilities: bool = False) -> list[dict]:
    """Return the answers by a decoding that has travelled as JSON."""
    decoding = json.loads(json.dumps(task.decoding(probabilities=probabilities)))
    found = answers(decoding, outputs)
    assert json.loads(json.dumps(found)) == found
    return found


@pytest.mark.parametrize("probabilities", [False, True])
def test_answers_of_a_classifier_are_classes_with_probabilities(probabilities: bool) -> None:
    task = task_for("classification", classes=("a", "b", "c"))
    outputs = softmax(OUTPUTS) if probabilities else OUTPUTS
    found = decoded(task, {"y": outputs}, probabilities)
    assert [each["class"] for each in found] == ["abc"[i] for i in task.decode(OUTPUTS)]
    expected = softmax(OUTPUTS).max(axis=1)
    np.testing.assert_allclose([each["probability"] for each in found], expected)


def test_softmax_of_large_logits_is_finite() -> None:
    np.testing.assert_allclose(softmax(np.array([[1000.0, 1000.0]])), [[0.5, 0.5]])


@pytest.mark.parametrize("probabilities", [False, True])
def test_answers_of_several_labels_are_those_above_the_threshold(probabilities: bool) -> None:
    task = task_for(
        "multilabel", classes=("a", "b", "c"), target_shape=(3,), options={"threshold": 0.7}
    )
    chances = 1 / (1 + np.exp(-OUTPUTS))
    found = decoded(task, {"y": chances if probabilities else OUTPUTS}, probabilities)
    for row, each in zip(chances, found, strict=True):
        expected = {name: value for name, value in zip("abc", row, strict=True) if value > 0.7}
        assert each["classes"] == pytest.approx(expected, rel=1e-5)


def test_answers_of_a_regression_are_numbers() -> None:
    found = decoded(task_for("regression", target_shape=(3,)), {"y": OUTPUTS})
    np.testing.assert_allclose([each["values"] for each in found], OUTPUTS)


def test_answers_of_a_segmentation_are_shares_of_pixels() -> None:
    maps = np.zeros((1, 2, 2, 3), np.float32)
    maps[0, :, :, 2], maps[0, 0, 0, 1] = 1, 2
    found = decoded(task_for("segmentation", classes=("a", "b", "c")), {"y": maps})
    assert found == [{"pixels": {"b": 0.25, "c": 0.75}}]


def test_answers_of_a_detector_are_its_boxes() -> None:
    inputs = {"image": InputInfo(shape=(32, 48, 3), dtype="uint8")}
    task = task_for("detection", classes=("a", "b"), inputs=inputs, options={"max_detections": 5})
    generator = np.random.default_rng(1)
    maps = {
        "fine": generator.normal(size=(3, 4, 6, 6)).astype(np.float32),
        "coarse": generator.normal(size=(3, 2, 3, 6)).astype(np.float32),
    }
    found = decoded(task, maps)
    expected = task.decode(maps)
    for image, each in zip(expected, found, strict=True):
        boxes = image[image[:, 5] >= 0]
        assert [box["class"] for box in each["boxes"]] == [
            "ab"[int(label)] for label in boxes[:, 5]
        ]
        np.testing.assert_allclose([box["score"] for box in each["boxes"]], boxes[:, 4])
        np.testing.assert_allclose([box["box"] for box in each["boxes"]], boxes[:, :4])


def test_answers_refuse_kinds_of_later_versions() -> None:
    with pytest.raises(ValueError, match="expected a known kind, received 'poem'"):
        answers({"kind": "poem"}, {"y": OUTPUTS})
