"""Metrics of a classifier's outputs: accuracy, confusion, agreement, calibration error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qat_lib.engines.values import nan_samples
from qat_lib.errors import DataError
from qatline.components.artifacts.evaluation import Agreement, ClassAccuracy

Floats = NDArray[np.floating[Any]]
Labels = NDArray[np.int64]

_BINS = 15


def check_outputs(outputs: Floats, model: str) -> None:
    """Reject outputs with NaN: their predicted class is undefined.

    Args:
        outputs: logits or probabilities, (samples, classes).
        model: name of the model for the message.

    Raises:
        DataError: a sample's outputs contain NaN.
    """
    if found := nan_samples(outputs):
        raise DataError(
            f"Expected numbers from {model}. Its outputs are NaN for {found} of {len(outputs)} "
            "samples, so its accuracy is not defined. Look for weights that are NaN, a division "
            "by zero or an overflow (in FP16, values beyond 65504), and correct the model or the "
            "training."
        )


def accuracy(outputs: Floats, labels: Labels) -> float:
    """Return the top-1 accuracy in [0, 1].

    Args:
        outputs: logits or probabilities, (samples, classes).
        labels: class indices, (samples,).
    """
    return float((outputs.argmax(axis=1) == labels).mean())


def top_k_accuracy(outputs: Floats, labels: Labels, k: int) -> float:
    """Return the top-``k`` accuracy in [0, 1]."""
    best = np.argpartition(outputs, -k, axis=1)[:, -k:]
    return float((best == labels[:, None]).any(axis=1).mean())


def top5_accuracy(outputs: Floats, labels: Labels) -> float | None:
    """Return the top-5 accuracy in [0, 1], or None for up to 5 classes."""
    return top_k_accuracy(outputs, labels, 5) if outputs.shape[1] > 5 else None


def confusion(outputs: Floats, labels: Labels, classes: int) -> NDArray[np.int64]:
    """Return counts (classes, classes): rows are labels, columns are predictions."""
    cells = labels * classes + outputs.argmax(axis=1)
    return np.bincount(cells, minlength=classes * classes).reshape(classes, classes)


def per_class(
    confusions: Mapping[str, NDArray[np.int64]], names: Sequence[str], reference: str
) -> list[ClassAccuracy]:
    """Return samples, accuracies and their change against ``reference`` for each class.

    Accuracies of classes without samples are None.
    """
    table = []
    for index, name in enumerate(names):
        samples = int(confusions[reference][index].sum())
        right = {row: int(matrix[index, index]) for row, matrix in confusions.items()}
        accuracy: dict[str, float | None] = dict.fromkeys(right)
        change: dict[str, float | None] = dict.fromkeys(right)
        if samples:
            for row, count in right.items():
                accuracy[row] = count / samples
                change[row] = (count - right[reference]) / samples
        table.append(ClassAccuracy(name=name, samples=samples, accuracy=accuracy, change=change))
    return table


def probabilities(outputs: Floats) -> Floats:
    """Return ``outputs`` unchanged if every row is a distribution, else their softmax."""
    values = outputs.astype(np.float64)
    if values.min() >= 0 and np.allclose(values.sum(axis=1), 1, atol=1e-3):
        return values
    # Subtracting the maximum avoids overflow and does not change the result.
    exponents = np.exp(values - values.max(axis=1, keepdims=True))
    return np.asarray(exponents / exponents.sum(axis=1, keepdims=True))


def calibration_error(outputs: Floats, labels: Labels) -> float:
    """Return the expected calibration error in [0, 1], with 15 bins of equal width.

    Source: Guo et al., On Calibration of Modern Neural Networks, ICML 2017, equation 3.
    """
    chances = probabilities(outputs)
    confidence, right = chances.max(axis=1), chances.argmax(axis=1) == labels
    bins = np.minimum((confidence * _BINS).astype(int), _BINS - 1)
    sums = np.bincount(bins, weights=right - confidence, minlength=_BINS)
    return float(np.abs(sums).sum() / len(labels))


def agreement(outputs: Floats, reference: Floats) -> Agreement:
    """Return the share of equal predictions and the differences of the probabilities."""
    difference = np.abs(probabilities(outputs) - probabilities(reference))
    return Agreement(
        labels=float((outputs.argmax(axis=1) == reference.argmax(axis=1)).mean()),
        largest_difference=float(difference.max()),
        mean_difference=float(difference.mean()),
    )
