"""Measured and accepted differences between an engine and its ONNX graph.

The difference of an output is the root mean square (RMS) of the deviation from the reference over
all requests, divided by the standard deviation of the reference's answers. For independent answers
it is 1.4. A tenth of the RMS of the worst sample is used instead if it is larger, to detect one
wrong sample among many. Accepted differences:

- FP32: different order of sums, and Winograd convolutions: below 1e-6. The bound is 0.001.
- FP32 in TensorRT: multiplication in TF32, with 10 bits of mantissa. The bound is 0.02.
- FP16, BF16: rounded values and biases: up to 0.04. The bound is 0.15.
- INT8: values near the edge between two levels may be rounded to the other level. The bound is
  0.02. Networks that amplify rounding, such as MobileNetV2 with trained weights, exceed it. Their
  bound is 1.5 times the noise, at most 0.5. The noise is the change of the reference's answers
  after a relative change of its input by 2**-14, which moves a few values across an edge, like a
  different order of sums. Noise has no direction, so the mean over the samples may differ by little
  more than noise / sqrt(samples).

Labels are the largest values of an output ``(samples, classes)``. On real inputs, the engine's
labels may differ for 2 % of the samples, or for twice the share of labels that change in the
reference under the same input noise. ``benchmarks/engine_faults.py`` measures the faults detected
by these bounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qat_lib.engines.backend import get_backend
from qat_lib.engines.manifest import EngineManifest
from qat_lib.engines.values import Array
from qat_lib.support.mappings import map_values

FP32_BOUND = 1e-3
TF32_BOUND = 2e-2
HALF_BOUND = 0.15
INT8_BOUND = 0.02
LABEL_BOUND = 0.02
"""Accepted share of real inputs with another label."""
NOISE_FACTOR = 1.5
NOISE_BOUND = 0.5
"""Upper limit of bounds from noise."""
NUDGE = 2.0**-14
"""Relative change of inputs to measure the noise of a network."""

_LEAST_SPREAD = 0.05
"""Minimum spread as a share of the answers' magnitude, for nearly constant answers."""
_TINY = 1e-6
_WORST = 0.1
"""Weight of the worst sample."""

Floats = NDArray[np.float64]
Answers = Mapping[str, Array]
"""Arrays by name: a request, or the outputs for it."""


def bound_of(manifest: EngineManifest, *, half: bool) -> float:
    """Return the largest accepted difference for the precision of an engine.

    Args:
        manifest: the engine's manifest.
        half: whether parts of the ONNX graph are in float16 or bfloat16.
    """
    if manifest.quantized:
        floats = half or manifest.spec["float_precision"] != "fp32"
        return HALF_BOUND if floats else INT8_BOUND
    if half or manifest.spec["float_precision"] != "fp32":
        return HALF_BOUND
    return TF32_BOUND if get_backend(manifest.backend).supports("tf32") else FP32_BOUND


@dataclass(frozen=True, kw_only=True)
class OutputAgreement:
    """Agreement of one output of an engine with the reference.

    Attributes:
        difference: difference over all requests.
        bound: largest accepted difference.
        is_shifted: whether the mean over the samples differs by more than the noise.
    """

    difference: float
    bound: float
    is_shifted: bool = False

    @property
    def agrees(self) -> bool:
        """Whether the difference is within the bound, without a shift."""
        return self.difference <= self.bound and not self.is_shifted

    @property
    def excess(self) -> float:
        """Ratio of the difference to its bound; infinite for a shifted output."""
        return float("inf") if self.is_shifted else self.difference / self.bound


@dataclass(frozen=True, kw_only=True)
class LabelAgreement:
    """Agreement of an engine's labels with the reference.

    Attributes:
        other: share of samples with another label.
        bound: largest accepted share.
    """

    other: float
    bound: float

    @property
    def agrees(self) -> bool:
        """Whether the share is within the bound."""
        return self.other <= self.bound


@dataclass(kw_only=True)
class ComparedAnswers:
    """Answers of an engine and of the reference.

    Attributes:
        manifest: the engine's manifest.
        half: whether parts of the ONNX graph are in float16 or bfloat16.
        run: returns the reference's answers to a request.
        requests: the requests.
        answers: the engine's outputs by name, one mapping per request.
        expected: the reference's outputs, in the same form.
    """

    manifest: EngineManifest
    half: bool
    run: Callable[[Answers], Answers]
    requests: Sequence[Answers]
    answers: Sequence[Answers]
    expected: Sequence[Answers]

    @cached_property
    def outputs(self) -> dict[str, OutputAgreement]:
        """Agreement of each output."""
        bound = bound_of(self.manifest, half=self.half)
        noisy = (lambda: self._moved) if self.manifest.quantized else None
        return judge_outputs(self.answers, self.expected, bound, noisy)

    @property
    def worst(self) -> str:
        """The output with the largest excess over its bound."""
        return max(self.outputs, key=lambda name: self.outputs[name].excess)

    def labels(self, output: str) -> LabelAgreement | None:
        """Return the agreement of labels; None if the output has none."""
        pick = itemgetter(output)
        expected = list(map(pick, self.expected))
        other = other_labels(list(map(pick, self.answers)), expected)
        if other is None:
            return None
        # A single deviating sample is always accepted, since small sets give no reliable share.
        bound = max(LABEL_BOUND, 1 / sum(map(len, expected)))
        if self.manifest.quantized and other > bound:
            noise = other_labels(list(map(pick, self._moved)), expected)
            bound = max(bound, 2 * (noise or 0.0))
        return LabelAgreement(other=other, bound=bound)

    @cached_property
    def _moved(self) -> list[Answers]:
        """The reference's answers to requests changed by ``NUDGE``."""
        return [self.run(map_values(nudged, request)) for request in self.requests]


def judge_outputs(
    answers: Sequence[Answers],
    expected: Sequence[Answers],
    bound: float,
    noisy: Callable[[], Sequence[Answers]] | None = None,
) -> dict[str, OutputAgreement]:
    """Return the agreement of each output.

    Args:
        answers: the engine's outputs by name, one mapping per request.
        expected: the reference's outputs, in the same form.
        bound: accepted difference for the engine's precision (``bound_of``).
        noisy: for a quantized engine, returns the reference's answers to slightly changed requests
            (``nudged``); it is called only if a difference exceeds ``bound``.
    """
    found = differences(answers, expected)
    # The noise needs another run of the reference, so try the plain bound first.
    plain = {name: OutputAgreement(difference=size, bound=bound) for name, size in found.items()}
    if noisy is None or all(each.agrees for each in plain.values()):
        return plain
    noises, shifts = differences(noisy(), expected), mean_shifts(answers, expected)
    compared = {}
    for name, noise in noises.items():
        if not NOISE_FACTOR * noise > bound or not np.isfinite(noise):
            compared[name] = plain[name]
            continue
        shift, samples, values = shifts[name]
        # The second factor allows for the spread of an RMS over few values.
        allowed = noise / math.sqrt(samples) * max(2.0, 1 + 3 / math.sqrt(values))
        compared[name] = OutputAgreement(
            difference=found[name],
            bound=min(NOISE_FACTOR * noise, NOISE_BOUND),
            is_shifted=shift > max(allowed, bound),
        )
    return compared


def mean_shifts(
    answers: Sequence[Answers], expected: Sequence[Answers]
) -> dict[str, tuple[float, int, int]]:
    """Return the shift of the mean over the samples for each output.

    Returns:
        RMS of the difference of the means over the spread of the reference's answers, number of
        samples, and number of values per sample. The shift is 0 for integers and for samples of
        different sizes.
    """
    shifts = {}
    for name in expected[0]:
        pick = itemgetter(name)
        ours, theirs = (list(_samples(map(pick, each))) for each in (answers, expected))
        sizes = {each.size for each in (*ours, *theirs)}
        if expected[0][name].dtype.kind not in "fV" or len(sizes) > 1 or len(ours) != len(theirs):
            shifts[name] = (0.0, len(theirs), 1)
            continue
        truth = np.stack(theirs)
        shift = np.mean(np.stack(ours) - truth, axis=0)
        shifts[name] = (_rms(shift) / _spread(truth), len(theirs), shift.size)
    return shifts


def nudged(value: Array, size: float = NUDGE) -> Array:
    """Return ``value`` with a relative change of ``size``; integers are not changed."""
    return np.asarray(value * (1 + size), value.dtype) if value.dtype.kind == "f" else value


def differences(answers: Sequence[Answers], expected: Sequence[Answers]) -> dict[str, float]:
    """Return the difference of each output over all requests.

    The difference is infinite if shapes or infinities differ.

    Args:
        answers: the engine's outputs by name, one mapping per request.
        expected: the reference's outputs, in the same form.
    """
    found = {}
    for name in expected[0]:
        pick = itemgetter(name)
        found[name] = difference(list(map(pick, answers)), list(map(pick, expected)))
    return found


def difference(answers: Sequence[Array], expected: Sequence[Array]) -> float:
    """Return the difference of an output over all requests; for integers, the unequal share."""
    if not have_equal_shapes(answers, expected):
        return float("inf")
    if expected[0].dtype.kind not in "fV":
        unequal = [*map(np.ravel, map(np.not_equal, answers, expected))]
        return float(np.concatenate(unequal).mean())
    squares, count, worst, finite = 0.0, 0, 0.0, []
    for one, other in zip(_samples(answers), _samples(expected), strict=True):
        # Infinities and NaN must agree exactly; the RMS covers the finite values.
        mask = np.isfinite(other)
        if not np.array_equal(one[~mask], other[~mask], equal_nan=True):
            return float("inf")
        if not np.isfinite(one[mask]).all():
            return float("inf")
        away = one[mask] - other[mask]
        squares, count = squares + float(np.sum(np.square(away))), count + away.size
        worst = max(worst, _rms(away))
        finite.append(other[mask])
    typical = max(math.sqrt(squares / max(count, 1)), _WORST * worst)
    return typical / _spread(np.concatenate(finite))


def _spread(values: Floats) -> float:
    spread = _rms(values - values.mean()) if values.size else 0.0
    return max(spread, _LEAST_SPREAD * _rms(values), _TINY)


def other_labels(answers: Sequence[Array], expected: Sequence[Array]) -> float | None:
    """Return the share of samples with another position of the largest value.

    The share is None for outputs without classes, such as a map with many nearly equal maxima.

    Args:
        answers: one output of an engine, one array per request.
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


def have_equal_shapes(answers: Sequence[Array], expected: Sequence[Array]) -> bool:
    """Return whether each answer has the expected shape."""
    return list(map(np.shape, answers)) == list(map(np.shape, expected))


def _samples(arrays: Iterable[Array]) -> Iterator[Floats]:
    """Yield each sample as a vector; an output without a batch is one sample."""
    for array in arrays:
        yield from _rows(array)


def _rows(array: Array) -> Any:
    values = array.astype(np.float64)
    return values.reshape(len(values) or 1, -1) if values.ndim else values.reshape(1, 1)


def _rms(values: Floats) -> float:
    return float(np.sqrt(np.mean(np.square(values)))) if values.size else 0.0
