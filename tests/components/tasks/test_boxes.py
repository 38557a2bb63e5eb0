"""Matches and average precision of boxes, against COCO's own evaluation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from qatline.components.tasks.boxes import (
    AveragePrecision,
    match,
    mean_of,
)

CLASSES = 4  # the last one has no boxes


def random_case(seed: int, images: int = 12) -> tuple[np.ndarray, np.ndarray]:
    """Return detections near boxes, a fifth of them crowds, many with equal coordinates."""
    generator = np.random.default_rng(seed)
    targets = np.zeros((images, 7, 6), np.float32)
    low = generator.uniform(0, 80, (images, 7, 2)).round()
    targets[..., :2], targets[..., 2:4] = low, low + generator.uniform(5, 40, low.shape).round()
    targets[..., 4] = generator.integers(0, CLASSES - 1, (images, 7))
    targets[..., 5] = generator.random((images, 7)) < 0.2
    targets[generator.random((images, 7)) < 0.3, 4] = -1
    near = generator.integers(0, 7, (images, 20, 1))
    detections = np.zeros((images, 20, 6))
    moved = generator.normal(0, 3, (images, 20, 4))
    detections[..., :4] = np.take_along_axis(targets[..., :4], near, axis=1) + moved
    detections[..., 2:4] = np.maximum(detections[..., 2:4], detections[..., :2] + 1)
    detections[..., 4] = -np.sort(-generator.random((images, 20)), axis=1)
    own = np.take_along_axis(targets[..., 4], near[..., 0], axis=1)
    other = generator.integers(0, CLASSES - 1, own.shape)
    detections[..., 5] = np.where(generator.random(own.shape) < 0.8, own, other)
    return detections, targets


def by_library(detections: np.ndarray, targets: np.ndarray) -> tuple[list[float], list[float]]:
    """Return mAP 50-95 and 50, and the precision of each class, by faster-coco-eval."""
    library = pytest.importorskip("faster_coco_eval")

    def row(image: int, values: np.ndarray, label: float) -> dict[str, Any]:
        x1, y1, x2, y2 = map(float, values[:4])
        box = [x1, y1, x2 - x1, y2 - y1]
        return {"image_id": image, "category_id": int(label), "bbox": box, "area": box[2] * box[3]}

    boxes, found = [], []
    for image, (ours, true) in enumerate(zip(detections, targets, strict=True), start=1):
        for values in true[true[:, 4] >= 0]:
            more = {"id": len(boxes) + 1, "iscrowd": int(values[5])}
            boxes.append({**row(image, values, values[4]), **more})
        for values in ours[ours[:, 5] >= 0]:
            found.append({**row(image, values, values[5]), "score": float(values[4])})
    truth = library.COCO(
        {
            "images": [{"id": n + 1, "width": 150, "height": 150} for n in range(len(targets))],
            "categories": [{"id": label, "name": str(label)} for label in range(CLASSES)],
            "annotations": boxes,
        }
    )
    evaluation = library.COCOeval_faster(
        truth, truth.loadRes(found), "bbox", print_function=lambda *_: None
    )
    evaluation.run()
    precision = evaluation.eval["precision"][..., 0, -1]
    classes = [float(precision[..., label].mean()) for label in range(CLASSES)]
    return [float(value) for value in evaluation.stats[:2]], classes


def edge_case(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a random case with boxes that evaluators treat specially.

    Boxes and detections extend beyond the image or lie outside of it, are empty, repeat, or share
    scores. Images have no boxes, crowds alone, no detections, or neither.
    """
    detections, targets = random_case(seed)
    generator = np.random.default_rng(100 + seed)

    def some(values: np.ndarray, share: float) -> np.ndarray:
        return generator.random(values.shape[:2]) < share

    for boxes in (detections, targets):
        moved = some(boxes, 0.2)
        boxes[moved, :4] += generator.choice([-90, -20, 70, 200], (moved.sum(), 1))
        flat, point = some(boxes, 0.1), some(boxes, 0.05)
        boxes[flat, 3] = boxes[flat, 1]
        boxes[point, 2:4] = boxes[point, :2]
    # The same box as crowd and object, the same detection twice, and equal scores everywhere.
    targets[:, 1, :5], targets[:, 1, 5] = targets[:, 0, :5], 1 - targets[:, 0, 5]
    detections[:, 1, :4], detections[:, 1, 5] = detections[:, 0, :4], detections[:, 0, 5]
    detections[:6, :, 4] = detections[:6, :, 4].round(1)
    targets[:2, :, 4] = -1
    targets[2:4, :, 5] = 1
    detections[1:4:2, :, 5] = -1
    detections[4, :, 4:] = [0, -1]
    # Class 2 has crowds only, and detections.
    targets[targets[..., 4] == 2, 5] = 1
    return detections, targets


@pytest.mark.parametrize("seed", range(20))
def test_average_precision_of_edge_cases_equals_the_library(seed: int) -> None:
    detections, targets = edge_case(seed)
    assert (detections[..., 5] == 2).any()
    (mean, at_half), classes = by_library(detections, targets)
    found = AveragePrecision(match(detections, targets, CLASSES)).by_class()
    assert [mean_of(found), mean_of(found[:, 0])] == pytest.approx([mean, at_half], abs=1e-12)
    assert found[:2].mean(axis=1) == pytest.approx(classes[:2], abs=1e-12)
    assert classes[2:] == [-1, -1]
    assert np.isnan(found[2:]).all()


@pytest.mark.parametrize("seed", range(6))
def test_average_precision_equals_the_library(seed: int) -> None:
    detections, targets = random_case(seed)
    (mean, at_half), classes = by_library(detections, targets)
    found = AveragePrecision(match(detections, targets, CLASSES)).by_class()
    assert mean_of(found) == pytest.approx(mean, abs=1e-12)
    assert mean_of(found[:, 0]) == pytest.approx(at_half, abs=1e-12)
    assert found[:-1].mean(axis=1) == pytest.approx(classes[:-1], abs=1e-12)
    assert np.isnan(found[-1]).all()


@pytest.mark.parametrize("seed", range(3))
def test_area_below_a_curve_is_the_average_precision(seed: int) -> None:
    precisions = AveragePrecision(match(*random_case(seed), CLASSES))
    curves = np.array(precisions.curves())
    assert (curves[..., 0] == np.linspace(0, 1, 101)).all()
    assert (np.diff(curves[..., 1]) <= 0).all()
    expected = precisions.by_class()[:-1, 0]
    assert curves[:-1, :, 1].mean(axis=1) == pytest.approx(expected, abs=1e-12)
    assert (curves[-1, :, 1] == 0).all()


@pytest.mark.parametrize("seed", range(3))
def test_average_precision_of_a_resample_is_that_of_its_images(seed: int) -> None:
    detections, targets = random_case(seed)
    rows = np.random.default_rng(seed).integers(0, len(targets), len(targets))
    found = AveragePrecision(match(detections, targets, CLASSES)).mean(rows)
    assert found == pytest.approx(by_library(detections[rows], targets[rows])[0][0], abs=1e-12)


def test_average_precision_without_boxes_is_no_number() -> None:
    samples = match(np.full((2, 3, 6), -1.0), np.full((2, 1, 6), -1.0), 2)
    assert np.isnan(AveragePrecision(samples).mean())
