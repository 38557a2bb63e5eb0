"""Measured and accepted differences between an engine and its ONNX graph.

The difference of an output is the root mean square (RMS) of what the two answers to a sample differ
by, for the worst sample, over the standard deviation of the reference's answers. It is 1.4 for
answers that have nothing to do with each other. What the precision explains, measured on ResNet-50,
the default network and small random ones:

- FP32: another order of sums, and Winograd convolutions: below 1e-6. The bound is 0.001.
- FP32 in TensorRT, which multiplies as TF32, with 10 bits of mantissa. The bound is 0.02.
- INT8, FP16, BF16: a value on the edge between two levels is rounded to the other one, and biases
  are rounded (ONNX Runtime): up to 0.04. The bound is 0.15.
- INT8 in networks that amplify rounding, such as MobileNetV2 with trained weights: more. There the
  bound is twice what the reference's own answers move by when its input moves by 2**-14 of itself,
  which puts a few values over an edge, as another order of sums does; at most 0.5.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qat_lib.engines.manifest import EngineManifest
from qat_lib.engines.values import Array

FP32_BOUND = 1e-3
TF32_BOUND = 2e-2
REDUCED_BOUND = 0.15
NOISE_BOUND = 0.5
"""Largest bound that the noise of a network can lead to."""
NUDGE = 2.0**-14

_LEAST_SPREAD = 0.05
"""Share of the answers' magnitude that counts as their spread at least: answers may all be nearly
the same."""
_TINY = 1e-6

Floats = NDArray[np.float64]


def bound_of(manifest: EngineManifest, *, half: bool) -> float:
    """Return the largest difference that the engine's precision explains.

    Args:
        manifest: the engine's manifest.
        half: whether some of the ONNX graph is in float16 or bfloat16.
    """
    if manifest.quantized:
        return REDUCED_BOUND
    if half or manifest.spec["float_precision"] != "fp32":
        return REDUCED_BOUND
    return TF32_BOUND if manifest.backend == "tensorrt" else FP32_BOUND


def widened_bounds(
    bound: float,
    run: Callable[[Mapping[str, Array]], Mapping[str, Array]],
    requests: Sequence[Mapping[str, Array]],
    expected: Sequence[Mapping[str, Array]],
) -> dict[str, float]:
    """Return each output's bound: twice the reference's own noise there, if that is wider.

    Args:
        bound: what a quantized engine's precision explains.
        run: the reference.
        requests: the requests, of which floats are moved by ``NUDGE`` of themselves.
        expected: the reference's answers to them.
    """
    moved = []
    for request in requests:
        moved.append(run({name: _nudged(value) for name, value in request.items()}))
    bounds = {}
    for name, noise in differences(moved, expected).items():
        bounds[name] = max(bound, min(2 * noise, NOISE_BOUND)) if np.isfinite(noise) else bound
    return bounds


def _nudged(value: Array) -> Array:
    if value.dtype.kind != "f":
        return value
    return np.asarray(value * (1 + NUDGE), value.dtype)


def differences(
    answers: Sequence[Mapping[str, Array]], expected: Sequence[Mapping[str, Array]]
) -> dict[str, float]:
    """Return the difference of each output over all requests.

    It is infinite where shapes or infinities differ.

    Args:
        answers: the engine's outputs by name, one mapping a request.
        expected: the reference's, likewise.
    """
    found = {}
    for name in expected[0]:
        pick = itemgetter(name)
        found[name] = difference(list(map(pick, answers)), list(map(pick, expected)))
    return found


def difference(answers: Sequence[Array], expected: Sequence[Array]) -> float:
    """Return an output's difference over all requests.

    Of integers, that is the share of unequal ones.
    """
    if not have_equal_shapes(answers, expected):
        return float("inf")
    if expected[0].dtype.kind not in "fV":
        unequal = [*map(np.ravel, map(np.not_equal, answers, expected))]
        return float(np.concatenate(unequal).mean())
    worst, finite = 0.0, []
    for one, other in zip(_samples(answers), _samples(expected), strict=True):
        mask = np.isfinite(other)
        if not np.array_equal(one[~mask], other[~mask], equal_nan=True):
            return float("inf")
        if not np.isfinite(one[mask]).all():
            return float("inf")
        worst = max(worst, _rms(one[mask] - other[mask]))
        finite.append(other[mask])
    values = np.concatenate(finite)
    spread = _rms(values - values.mean()) if values.size else 0.0
    return worst / max(spread, _LEAST_SPREAD * _rms(values), _TINY)


def have_equal_shapes(answers: Sequence[Array], expected: Sequence[Array]) -> bool:
    """Whether each answer has the shape that is expected of it."""
    return list(map(np.shape, answers)) == list(map(np.shape, expected))


def _samples(arrays: Sequence[Array]) -> Iterator[Floats]:
    """Yield each sample as a vector; an output without batch is one."""
    for array in arrays:
        yield from _rows(array)


def _rows(array: Array) -> Any:
    values = array.astype(np.float64)
    return values.reshape(len(values) or 1, -1) if values.ndim else values.reshape(1, 1)


def _rms(values: Floats) -> float:
    return float(np.sqrt(np.mean(np.square(values)))) if values.size else 0.0
