"""Accepted differences between an engine and its ONNX graph.

``qat_lib.support.answers`` measures them. Accepted are:

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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter

import numpy as np

from qat_lib.engines.backend import get_backend
from qat_lib.engines.manifest import EngineManifest
from qat_lib.support.answers import Answers, differences, mean_shifts, nudged, other_labels
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
