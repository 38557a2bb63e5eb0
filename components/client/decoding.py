"""Answers in words and numbers from a network's outputs.

A decoding is a JSON object of ``Task.decoding``. It travels with the model, and this module needs
NumPy only, so that training, ``qatline predict``, servers and clients read outputs alike.

====================  ==========================================  ==================================
``kind``              further keys                                answer of a sample
====================  ==========================================  ==================================
``classification``    ``classes``, ``probabilities``              ``class``, ``probability``
``multilabel``        ``classes``, ``probabilities``,             ``classes``: probability by name
                      ``threshold``
``regression``                                                    ``values``
``segmentation``      ``classes``                                 ``pixels``: share by name
``detection``         ``classes``, ``image``, ``score``, ``iou``, ``boxes``: corners, class and score
                      ``most``
====================  ==========================================  ==================================

``probabilities`` tells whether the outputs are probabilities instead of logits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

BOX = 4
"""Values of a location that describe a box: offset of the centre, and size."""

SCALE = 4.0
"""Factor on sizes of boxes, in strides: untrained networks then predict sizes of their level."""

NO_BOX = -1.0
"""Score of candidates that do not count."""

# Candidates of the suppression, as a multiple of the largest number of boxes.
_CANDIDATES = 10
_LARGEST = 8.0  # strides


def answers(decoding: Mapping[str, Any], outputs: Mapping[str, Array]) -> list[dict[str, Any]]:
    """Return the answer of each sample, in JSON types.

    Args:
        decoding: the decoding of the model; see the table of this module.
        outputs: outputs by name, ``(samples, ...)``, with the channels in the last axis.

    Raises:
        ValueError: the kind is unknown to this version.
    """
    kind, values = decoding.get("kind"), next(iter(outputs.values()))
    names = decoding.get("classes", ())
    if kind == "classification":
        chances = values.astype(np.float64) if decoding["probabilities"] else softmax(values)
        best = chances.argmax(axis=1)
        return [
            {"class": _name(names, index), "probability": float(row[index])}
            for index, row in zip(best.tolist(), chances, strict=True)
        ]
    if kind == "multilabel":
        chances = values.astype(np.float64) if decoding["probabilities"] else sigmoid(values)
        return [
            {
                "classes": {
                    _name(names, index): float(row[index])
                    for index in np.flatnonzero(row > decoding["threshold"]).tolist()
                }
            }
            for row in chances
        ]
    if kind == "regression":
        return [{"values": row} for row in values.astype(np.float64).tolist()]
    if kind == "segmentation":
        found = []
        for mask in values.argmax(axis=-1):
            counts = np.bincount(mask.ravel()) / mask.size
            shares = {_name(names, index): float(counts[index]) for index in counts.nonzero()[0]}
            found.append({"pixels": shares})
        return found
    if kind == "detection":
        images = detections(
            list(outputs.values()),
            image=tuple(decoding["image"]),
            classes=len(names),
            score=decoding["score"],
            iou=decoding["iou"],
            most=decoding["most"],
        )
        return [
            {
                "boxes": [
                    {"box": corners, "class": _name(names, int(label)), "score": score}
                    for *corners, score, label in image[image[:, 5] >= 0].tolist()
                ]
            }
            for image in images
        ]
    raise ValueError(f"decoding: expected a known kind, received {kind!r}. Update the client.")


def _name(names: Sequence[str], index: int) -> str:
    return str(names[index]) if index < len(names) else str(index)


def softmax(outputs: Array) -> Array:
    """Return the softmax over the classes, float64 ``(samples, classes)``."""
    values = outputs.astype(np.float64)
    # Subtracting the maximum avoids overflow and does not change the result.
    exponents = np.exp(values - values.max(axis=1, keepdims=True))
    return np.asarray(exponents / exponents.sum(axis=1, keepdims=True))


def sigmoid(outputs: Array) -> Array:
    """Return the logistic function in float64."""
    return np.asarray(0.5 * (1 + np.tanh(outputs.astype(np.float64) / 2)))


class Levels:
    """Locations of maps that divide an image evenly.

    A map serves the boxes whose longer side is at most eight times its stride, unless a finer map
    does; the coarsest serves all larger ones.

    Args:
        sizes: rows and columns of each map, finest first.
        image: height and width.

    Attributes:
        centers: x and y of each location in pixels, ``(locations, 2)``; map by map, row by row.
        strides: distance to the next location in x and y, ``(locations, 2)``.
        smallest, largest: range of the longer sides of boxes, ``(locations,)``.
    """

    def __init__(self, sizes: Sequence[tuple[int, ...]], image: tuple[int, int]) -> None:
        centers, strides, smallest, largest = [], [], [], []
        bound = 0.0
        for number, (rows, columns) in enumerate(sizes):
            stride = np.array([image[1] / columns, image[0] / rows])
            y, x = np.mgrid[:rows, :columns] + 0.5
            centers.append(np.stack([x, y], axis=-1).reshape(-1, 2) * stride)
            strides.append(np.broadcast_to(stride, (rows * columns, 2)))
            upper = _LARGEST * stride.max() if number < len(sizes) - 1 else np.inf
            smallest.append(np.full(rows * columns, bound))
            largest.append(np.full(rows * columns, upper))
            bound = upper
        self.centers, self.strides = np.concatenate(centers), np.concatenate(strides)
        self.smallest, self.largest = np.concatenate(smallest), np.concatenate(largest)


def detections(
    maps: Sequence[Array],
    *,
    image: tuple[int, int],
    classes: int,
    score: float,
    iou: float,
    most: int,
) -> Array:
    """Return the boxes of each image, ``(samples, most, 6)``.

    Args:
        maps: outputs ``(samples, rows, columns, classes + 4)``, in any order.
        image: height and width of the input.
        classes: number of classes.
        score: score below which a box is left out.
        iou: IoU above which the worse of two boxes of a class is left out.
        most: largest number of boxes of an image.

    Returns:
        x1, y1, x2, y2, score and class of each box, best first; missing ones have score 0 and
        class -1.
    """
    maps = sorted(maps, key=lambda each: -each.shape[1] * each.shape[2])
    levels = Levels([each.shape[1:3] for each in maps], image)
    raw = np.concatenate([each.reshape(len(each), -1, each.shape[-1]) for each in maps], axis=1)
    raw = raw.astype(np.float64)
    scores = sigmoid(raw[..., :classes]).reshape(len(raw), -1)
    count = min(_CANDIDATES * most, scores.shape[1])
    best = np.argpartition(-scores, count - 1, axis=1)[:, :count]
    best.sort(axis=1)  # of equal scores the first location wins, whatever the partition
    location, label = np.divmod(best, classes)
    chosen = np.take_along_axis(raw[..., classes:], location[..., None], axis=1)
    boxes = box_of(chosen, levels.centers[location], levels.strides[location])
    height, width = image
    boxes = boxes.clip(0, np.array([width, height, width, height]))
    scores = np.take_along_axis(scores, best, axis=1)
    scores[scores < score] = NO_BOX
    return suppress(boxes, scores, label, iou=iou, most=most)


def box_of(raw: Array, centers: Array, strides: Array) -> Array:
    """Return boxes from the values of their locations, ``(..., 4)``."""
    center = centers + raw[..., :2] * strides
    half = np.logaddexp(raw[..., 2:4], 0) * (SCALE / 2) * strides
    return np.concatenate([center - half, center + half], axis=-1)


def overlaps(boxes: Array, others: Array, *, of_first: Array | bool = False) -> Array:
    """Return the IoU of boxes, ``(..., 4)``; shapes are broadcast.

    Args:
        boxes: the first boxes.
        others: the second boxes.
        of_first: where to divide by the area of the first box instead, as for crowds.
    """
    low = np.maximum(boxes[..., :2], others[..., :2])
    high = np.minimum(boxes[..., 2:4], others[..., 2:4])
    shared = np.maximum(high - low, 0).prod(axis=-1)
    first, second = ((each[..., 2:4] - each[..., :2]).prod(axis=-1) for each in (boxes, others))
    whole = np.where(of_first, first, first + second - shared)
    return np.asarray(shared / np.maximum(whole, 1e-12))


def suppress(boxes: Array, scores: Array, classes: Array, *, iou: float, most: int) -> Array:
    """Return the best boxes of each image, without those that overlap a better one of their class.

    The loop runs over the ranks, and each of its steps serves all images.

    Args:
        boxes: candidates ``(images, candidates, 4)``.
        scores: their scores, ``(images, candidates)``; candidates of -1 or below don't count.
        classes: their classes, ``(images, candidates)``.
        iou: IoU above which the worse of two boxes is left out.
        most: number of returned boxes.

    Returns:
        ``(images, most, 6)``: box, score and class, best first; missing ones have score 0 and
        class -1.
    """
    images = np.arange(len(boxes))
    found = np.zeros((len(boxes), most, 6))
    found[..., 5] = -1
    left = np.array(scores, np.float64)
    for rank in range(most if left.shape[1] else 0):
        best = left.argmax(axis=1)
        score = left[images, best]
        valid = score > NO_BOX
        if not valid.any():
            break
        chosen, label = boxes[images, best], classes[images, best]
        row = np.concatenate([chosen, score[:, None], label[:, None]], axis=1)
        found[valid, rank] = row[valid]
        same = classes == label[:, None]
        left[same & (overlaps(chosen[:, None], boxes) > iou)] = NO_BOX
        left[images, best] = NO_BOX
    return found
