"""Measured and accepted differences between an engine and its ONNX graph.

The difference of an output is the root mean square (RMS) of the deviation from the reference over
all requests, divided by the standard deviation of the reference's answers. For independent answers
it is 1.4. A tenth of the RMS of the worst sample is used instead if it is larger, to detect one
wrong sample among many. Accepted differences:

- FP32: different order of sums, and Winograd convolutions: below 1e-6. The bound is 0.001.
  Untrained networks may amplify rounding: beyond the bound, 1.5 times the change of the reference's
  answers by a relative change of the inputs of 2**-17 is accepted, at most 0.5.
- FP32 in TensorRT: multiplication in TF32, with 10 bits of mantissa. The bound is 0.02.
- FP16, BF16: rounded values and biases: up to 0.04. The bound is 0.15.
- INT8: values near the edge between two levels may be rounded to the other level. The bound is
  0.02. Networks that amplify rounding, such as MobileNetV2 with trained weights, exceed it.

Engine and reference of such a network answer dithered copies of some requests, with changes of the
inputs by about one INT8 step. Each copy rounds other values in another direction, so rounding noise
averages out, and the error of a fault remains. Accepted are

- 1.5 times the noise for a single difference, at most 0.5. The noise is the change of the
  reference's answers by the dither.
- half the plain bound for the mean difference over the copies, after subtraction of chance. Chance
  is the largest mean with random signs: without a fault, the copies' differences have no common
  sign.

Integers, such as tokens, can't be dithered. For models without other inputs, the lookup tables of
the reference are dithered instead, and only the first bound applies.

Labels are the largest values of an output ``(samples, classes)``. On real inputs, the engine's
labels may differ for 2 % of the samples, or for twice the share of labels that the dither changes
in the reference. ``benchmarks/engine_faults.py`` measures the faults detected by these bounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter, itemgetter

import numpy as np

from qat_lib.engines.backend import get_backend
from qat_lib.engines.manifest import EngineManifest
from qat_lib.engines.values import Array
from qat_lib.support.answers import (
    Answers,
    Floats,
    answer_spread,
    difference,
    differences,
    have_equal_shapes,
    nudged,
    other_labels,
    sample_rows,
)
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
DITHER = 2.0**-7
"""Largest relative change of a dithered input: about one step of large INT8 values."""

_NUDGE = 2.0**-17
"""Relative change of an FP32 engine's inputs: 64 units in the last place, since rounding occurs in
every layer."""

_COPIES, _FEWEST_COPIES = 16, 4
# Least number of samples to dither: copies say more about a fault than samples do.
_SAMPLES = 6
# Number of dithered samples in all copies, within the bounds on the number of copies.
_DITHERED = 256
# Largest number of values per sample for the mean difference.
_VALUES = 4096
# Number of means with random signs: one in a hundred correct engines exceeds all of them.
_SIGNS = 99


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
        difference: difference over all requests, or the mean over dithered copies if that exceeds
            its bound by more.
        bound: largest accepted difference.
        averaged: whether ``difference`` is a mean over dithered copies.
    """

    difference: float
    bound: float
    averaged: bool = False

    @property
    def agrees(self) -> bool:
        """Whether the difference is within the bound."""
        return self.difference <= self.bound

    @property
    def excess(self) -> float:
        """Ratio of the difference to its bound."""
        return self.difference / self.bound


@dataclass(frozen=True, kw_only=True)
class Noise:
    """Rounding noise of one output, from dithered copies of requests.

    Attributes:
        size: change of the reference's answers by the dither.
        labels: share of labels that the dither changes; None for outputs without classes.
        systematic: mean difference of the engine over the copies, beyond chance.
    """

    size: float
    labels: float | None = None
    systematic: float = 0.0


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
        moved: the same, with dithered lookup tables.
        infer: returns the engine's answers to a request.
        requests: the requests.
        answers: the engine's outputs by name, one mapping per request.
        expected: the reference's outputs, in the same form.
    """

    manifest: EngineManifest
    half: bool
    run: Callable[[Answers], Answers]
    moved: Callable[[Answers], Answers]
    infer: Callable[[Answers], Answers]
    requests: Sequence[Answers]
    answers: Sequence[Answers]
    expected: Sequence[Answers]

    @cached_property
    def outputs(self) -> dict[str, OutputAgreement]:
        """Agreement of each output."""
        bound = bound_of(self.manifest, half=self.half)
        if self.manifest.quantized:
            return judge_outputs(self.answers, self.expected, bound, lambda: self._noise)
        rounding = self._rounding if bound == FP32_BOUND else None
        return judge_outputs(self.answers, self.expected, bound, rounding)

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
            bound = max(bound, 2 * (self._noise[output].labels or 0.0))
        return LabelAgreement(other=other, bound=bound)

    def _rounding(self) -> dict[str, Noise]:
        """Return the noise of an FP32 engine, from requests with a tiny change."""
        moved = [
            map_values(lambda value: nudged(value, _NUDGE), request) for request in self.requests
        ]
        sizes = differences(list(map(self.run, moved)), self.expected)
        return {name: Noise(size=size) for name, size in sizes.items()}

    @cached_property
    def _noise(self) -> dict[str, Noise]:
        if any(value.dtype.kind == "f" for value in self.requests[0].values()):
            return measure_noise(self.run, self.infer, self.requests, self.expected)
        return noise_of_tables(list(map(self.moved, self.requests)), self.expected)


def judge_outputs(
    answers: Sequence[Answers],
    expected: Sequence[Answers],
    bound: float,
    noise: Callable[[], Mapping[str, Noise]] | None = None,
) -> dict[str, OutputAgreement]:
    """Return the agreement of each output.

    Args:
        answers: the engine's outputs by name, one mapping per request.
        expected: the reference's outputs, in the same form.
        bound: accepted difference for the engine's precision (``bound_of``).
        noise: returns the noise of each output; it is called only if a difference exceeds
            ``bound``. Default None: there is none.
    """
    found = differences(answers, expected)
    compared = {name: OutputAgreement(difference=size, bound=bound) for name, size in found.items()}
    # The noise needs many runs of the reference, so try the plain bound first.
    if noise is None or not np.isfinite([*found.values()]).all():
        return compared
    noises: Mapping[str, Noise] = {}
    for name, plain in compared.items():
        if plain.agrees:
            continue
        noises = noises or noise()
        if not bound < NOISE_FACTOR * (noisy := noises[name]).size < np.inf:
            continue
        widened = min(NOISE_FACTOR * noisy.size, NOISE_BOUND)
        single = OutputAgreement(difference=found[name], bound=widened)
        mean = OutputAgreement(difference=noisy.systematic, bound=bound / 2, averaged=True)
        compared[name] = max(single, mean, key=attrgetter("excess"))
    return compared


def measure_noise(
    run: Callable[[Answers], Answers],
    infer: Callable[[Answers], Answers],
    requests: Sequence[Answers],
    expected: Sequence[Answers],
) -> dict[str, Noise]:
    """Return the noise of each output, from dithered copies of the smallest requests.

    Args:
        run: returns the reference's answers to a request.
        infer: returns the engine's answers to a request.
        requests: the requests.
        expected: the reference's answers to them.
    """
    chosen: list[int] = []
    samples = 0
    for index in sorted(range(len(requests)), key=lambda i: _count(requests[i])):
        if samples < _SAMPLES:
            chosen.append(index)
            samples += _count(requests[index])
    random = np.random.default_rng(0)
    truth = [expected[index] for index in chosen]
    sizes: dict[str, list[float]] = {name: [] for name in expected[0]}
    labels: dict[str, list[float | None]] = {name: [] for name in expected[0]}
    away: dict[str, list[list[Floats]]] = {name: [] for name in expected[0]}
    for _ in range(max(_FEWEST_COPIES, min(_COPIES, _DITHERED // samples))):
        copies = [
            map_values(lambda value: dithered(value, random), requests[index]) for index in chosen
        ]
        ours, theirs = list(map(infer, copies)), list(map(run, copies))
        for name in expected[0]:
            pick = itemgetter(name)
            one, two, three = (list(map(pick, each)) for each in (ours, theirs, truth))
            # Outputs with shapes that depend on values have no mean over the copies.
            is_fixed = have_equal_shapes(one, two) and have_equal_shapes(two, three)
            sizes[name].append(difference(two, three) if is_fixed else np.inf)
            labels[name].append(other_labels(two, three))
            if is_fixed and two[0].dtype.kind in "fV":
                away[name].append([_some(x) - _some(y) for x, y in zip(one, two, strict=True)])
    found = {}
    for name in expected[0]:
        size = float(np.mean(sizes[name]))
        shares = [share for share in labels[name] if share is not None]
        values = np.concatenate([sample_rows(each[name]).ravel() for each in truth])
        scale = answer_spread(values[np.isfinite(values)])
        found[name] = Noise(
            size=size,
            labels=float(np.mean(shares)) if shares else None,
            systematic=mean_beyond_chance(away[name], random) / scale
            if np.isfinite(size) and away[name]
            else 0.0,
        )
    return found


def noise_of_tables(moved: Sequence[Answers], expected: Sequence[Answers]) -> dict[str, Noise]:
    """Return the rounding noise of each output for requests of integers, such as tokens.

    Args:
        moved: the reference's answers with dithered lookup tables.
        expected: the reference's answers.
    """
    found = {}
    for name, size in differences(moved, expected).items():
        pick = itemgetter(name)
        labels = other_labels(list(map(pick, moved)), list(map(pick, expected)))
        found[name] = Noise(size=size, labels=labels)
    return found


def mean_beyond_chance(away: Sequence[Sequence[Floats]], random: np.random.Generator) -> float:
    """Return the RMS of the mean difference over copies, beyond that of means with random signs.

    Args:
        away: differences ``(samples, values)``, by copy and request.
        random: generator of the signs.
    """
    squares, count, chance = 0.0, 0, np.zeros(_SIGNS)
    for copies in zip(*away, strict=True):
        stacked = np.stack(copies)
        signs = random.choice([-1.0, 1.0], (_SIGNS, *stacked.shape[:2]))
        squares += float(np.sum(np.square(stacked.mean(axis=0))))
        count += stacked[0].size
        for index, sign in enumerate(signs):
            chance[index] += np.sum(np.square(np.mean(sign[..., None] * stacked, axis=0)))
    return math.sqrt(max(squares - float(chance.max()), 0.0) / max(count, 1))


def dithered(value: Array, random: np.random.Generator) -> Array:
    """Return ``value`` with random relative changes up to ``DITHER``; integers are not changed."""
    if value.dtype.kind != "f":
        return value
    return np.asarray(value * (1 + DITHER * random.uniform(-1, 1, value.shape)), value.dtype)


def _some(array: Array) -> Floats:
    """Return at most ``_VALUES`` evenly spaced values of each sample; others than numbers are 0."""
    values = sample_rows(array)
    some: Floats = values[:, :: max(1, -(-values.shape[1] // _VALUES))]
    return np.asarray(np.nan_to_num(some, posinf=0.0, neginf=0.0))


def _count(request: Answers) -> int:
    """Return the number of samples of a request."""
    return max((len(value) for value in request.values() if value.ndim), default=1)
