"""Measured differences between the answers of two programs for one model.

The difference of an output is the root mean square (RMS) of the deviation from the reference over
all requests, divided by the standard deviation of the reference's answers. For independent answers
it is 1.4. A tenth of the RMS of the worst sample is used instead if it is larger, to detect one
wrong sample among many.

Accepted differences depend on the programs: ``qat_lib.engines.agreement`` defines those of engines,
``qat_lib.export.comparing`` those of exported files.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Minimum spread as a share of the answers' magnitude, for nearly constant answers.
_LEAST_SPREAD = 0.05
_TINY = 1e-6
# Weight of the worst sample.
_WORST = 0.1

Floats = NDArray[np.float64]
Answers = Mapping[str, NDArray[Any]]
"""Arrays by name: a request, or the outputs for it."""


def nudged(value: NDArray[Any], size: float) -> NDArray[Any]:
    """Return ``value`` with a relative change of ``size``; integers are not changed."""
    return np.asarray(value * (1 + size), value.dtype) if value.dtype.kind == "f" else value


def differences(answers: Sequence[Answers], expected: Sequence[Answers]) -> dict[str, float]:
    """Return the difference of each output over all requests.

    The difference is infinite if shapes or infinities differ.

    Args:
        answers: the outputs by name, one mapping per request.
        expected: the reference's outputs, in the same form.
    """
    found = {}
    for name in expected[0]:
        pick = itemgetter(name)
        found[name] = difference(list(map(pick, answers)), list(map(pick, expected)))
    return found


def difference(answers: Sequence[NDArray[Any]], expected: Sequence[NDArray[Any]]) -> float:
    """Return the difference of an output over all requests; for integers, the unequal share."""
    if not have_equal_shapes(answers, expected):
        return float("inf")
    if expected[0].dtype.kind not in "fV":
        unequal = [*map(np.ravel, map(np.not_equal, answers, expected))]
        return float(np.concatenate(unequal).mean())
    squares, worst, moments = 0.0, 0.0, np.zeros(3)
    for one, other in zip(_samples(answers), _samples(expected), strict=True):
        # Infinities and NaN must agree exactly; the RMS covers the finite values.
        mask = np.isfinite(other)
        if not np.array_equal(one[~mask], other[~mask], equal_nan=True):
            return float("inf")
        if not np.isfinite(one[mask]).all():
            return float("inf")
        away = one[mask] - other[mask]
        square = float(away @ away)
        squares, worst = squares + square, max(worst, math.sqrt(square / max(away.size, 1)))
        moments += _moments(other[mask])
    typical = max(math.sqrt(squares / max(moments[0], 1)), _WORST * worst)
    return typical / _spread(moments)


def answer_spread(values: Floats) -> float:
    """Return the standard deviation of the answers, bounded from below."""
    return _spread(_moments(values.ravel()))


def _moments(values: Floats) -> Floats:
    """Return the number of values, their sum and their sum of squares."""
    return np.array([values.size, values.sum(), values @ values])


def _spread(moments: Floats) -> float:
    _, mean, squares = moments / max(moments[0], 1)
    # Rounding matters only for a variance far below the bound.
    variance = max(squares - mean**2, 0.0)
    return max(math.sqrt(variance), _LEAST_SPREAD * math.sqrt(squares), _TINY)


def other_labels(answers: Sequence[NDArray[Any]], expected: Sequence[NDArray[Any]]) -> float | None:
    """Return the share of samples with another position of the largest value.

    The share is None for outputs without classes, such as a map with many nearly equal maxima.

    Args:
        answers: one output, one array per request.
        expected: the reference's output, in the same form.
    """
    if any(each.ndim != 2 or each.shape[1] < 2 or each.dtype.kind not in "fV" for each in expected):
        return None
    if not have_equal_shapes(answers, expected):
        return 1.0
    other = []
    for one, two in zip(answers, expected, strict=True):
        other.append(one.argmax(1) != two.argmax(1))
    return float(np.concatenate(other).mean())


def have_equal_shapes(answers: Sequence[NDArray[Any]], expected: Sequence[NDArray[Any]]) -> bool:
    """Return whether each answer has the expected shape."""
    return list(map(np.shape, answers)) == list(map(np.shape, expected))


def _samples(arrays: Iterable[NDArray[Any]]) -> Iterator[Floats]:
    """Yield each sample as a vector of float64; an output without a batch is one sample."""
    for array in arrays:
        for row in _rows(array):
            yield row.astype(np.float64)


def sample_rows(array: NDArray[Any]) -> Any:
    """Return each sample as a row of float64; an output without a batch is one row."""
    return _rows(array).astype(np.float64)


def _rows(array: NDArray[Any]) -> NDArray[Any]:
    return array.reshape(len(array) or 1, -1) if array.ndim else array.reshape(1, 1)
