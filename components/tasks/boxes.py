"""Boxes of a detector: matching with the targets and COCO's average precision.

Boxes are ``x1, y1, x2, y2`` in pixels. ``pycocotools`` and ``faster-coco-eval`` compute the same
precision, but return no matches per image, which a paired test of images requires.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qatline.components.client.decoding import NO_BOX, overlaps

Array = NDArray[Any]

NEAR = 1.5
"""Largest distance of a location from the centre of its box, in strides."""

BOX_WEIGHT = 2.0
"""Weight of the loss of the boxes, relative to that of the classes."""

THRESHOLDS = np.linspace(0.5, 0.95, 10)
"""IoU from which a detection counts as found, as in COCO."""

_RECALLS = np.linspace(0, 1, 101)


def match(detections: Array, targets: Array, classes: int) -> dict[str, Array]:
    """Match detections with the boxes of their class, as COCO does.

    The detections of an image choose in the order of their scores, each the free box with the
    largest IoU. Detections of crowds are ignored.

    Args:
        detections: ``(images, detections, 6)``: box, score and class, best first; class -1 for
            missing ones.
        targets: ``(images, boxes, 6)``: box, class and crowd; class -1 for missing ones.
        classes: number of classes.

    Returns:
        Per image ``score``, ``class``; ``match``, (images, detections, thresholds), 1 for a found
        box, 0 for a wrong detection and -1 for an ignored one; and ``boxes``, the number of boxes
        of each class without crowds.
    """
    targets = np.asarray(targets, np.float64)
    label, crowd = targets[..., 4], targets[..., 5] > 0
    images, count = detections.shape[:2]
    free = np.ones((images, len(THRESHOLDS), targets.shape[1]), bool)
    found = np.zeros((images, count, len(THRESHOLDS)), np.int8)
    least = np.minimum(THRESHOLDS, 1 - 1e-10)[None, :, None]
    every = np.arange(images)[:, None], np.arange(len(THRESHOLDS))[None]
    for rank in range(count if targets.shape[1] else 0):
        each = detections[:, rank]
        if not (each[:, 5] >= 0).any():
            break
        iou = overlaps(each[:, None], targets, of_first=crowd)
        iou[(label != each[:, 5:]) | (label < 0)] = NO_BOX
        near = iou[:, None] >= least
        # Crowds take any number of detections, but only those that match no other box.
        own = np.where(near & free & ~crowd[:, None], iou[:, None], NO_BOX)
        # Of boxes with the same IoU COCO takes the last one.
        best = own.shape[2] - 1 - own[..., ::-1].argmax(axis=2)
        hit = own[(*every, best)] > NO_BOX
        ignored = (near & crowd[:, None]).any(axis=2)
        found[:, rank] = np.where(hit, 1, np.where(ignored, -1, 0))
        free[(*every, best)] &= ~hit
    counted = np.stack([((label == c) & ~crowd).sum(axis=1) for c in range(classes)], axis=1)
    return {
        "score": detections[..., 4].astype(np.float32),
        "class": detections[..., 5].astype(np.int16),
        "match": found,
        "boxes": counted.astype(np.int32),
    }


class AveragePrecision:
    """COCO's average precision of any sample of images, from their matches.

    Detections are sorted once; the images of a resample are weights of their detections.

    Args:
        samples: the result of ``match``.
    """

    def __init__(self, samples: Mapping[str, Array]) -> None:
        self._boxes = samples["boxes"]
        self._ranked = []
        scores, labels = samples["score"], samples["class"]
        for index in range(self._boxes.shape[1]):
            image, rank = np.nonzero(labels == index)
            order = np.argsort(-scores[image, rank], kind="stable")
            image, rank = image[order], rank[order]
            matches = samples["match"][image, rank].T
            self._ranked.append((image, (matches == 1) * 1.0, (matches == 0) * 1.0))

    def by_class(self, rows: Array | None = None) -> Array:
        """Return the precision of each class and IoU threshold, ``(classes, thresholds)``.

        A class without boxes has NaN.

        Args:
            rows: indices of the images, repeated ones count as often; None for all.
        """
        images = len(self._boxes)
        weights = np.ones(images) if rows is None else np.bincount(rows, minlength=images) * 1.0
        totals = weights @ self._boxes
        found = np.full((len(self._ranked), len(THRESHOLDS)), np.nan)
        for index, (image, right, wrong) in enumerate(self._ranked):
            if totals[index]:
                weight = weights[image]
                found[index] = _areas(right * weight, wrong * weight, totals[index])
        return found

    def curves(self) -> list[Array]:
        """Return (recall, precision) of each class at the first threshold, ``(101, 2)``.

        The precision is the best at this recall or a larger one, and 0 beyond the largest recall.
        """
        found = []
        for (_, right, wrong), total in zip(self._ranked, self._boxes.sum(axis=0), strict=True):
            hits = right[0].cumsum()
            precision = hits / np.maximum(hits + wrong[0].cumsum(), np.spacing(1))
            precision = np.append(np.maximum.accumulate(precision[::-1])[::-1], 0.0)
            reached = np.searchsorted(hits / max(total, 1), _RECALLS)
            found.append(np.stack([_RECALLS, precision[reached]], axis=1))
        return found

    def mean(self, rows: Array | None = None) -> float:
        """Return the mean over the classes with boxes and the thresholds; NaN without boxes."""
        return mean_of(self.by_class(rows))


def mean_of(values: Array) -> float:
    """Return the mean of the values other than NaN; NaN if there are none."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else float("nan")


def _areas(right: Array, wrong: Array, total: float) -> Array:
    """Return the mean precision at 101 recalls of each threshold.

    Args:
        right: weight of each right detection, best first, ``(thresholds, detections)``.
        wrong: the same of the wrong ones.
        total: weight of the boxes.
    """
    hits = right.cumsum(axis=1)
    precision = hits / np.maximum(hits + wrong.cumsum(axis=1), np.spacing(1))
    # The best precision at this recall or a larger one.
    precision = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
    # Number of recalls that each detection reaches, by number of hits, instead of a search.
    reached = np.searchsorted(_RECALLS, np.arange(total + 1) / total, side="right")
    new = np.diff(reached[hits.astype(np.int64)], axis=1, prepend=0)
    return np.asarray((precision * new).sum(axis=1) / len(_RECALLS))
