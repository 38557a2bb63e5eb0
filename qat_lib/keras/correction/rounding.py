"""Rounding of the weights of one layer for the least output error, in NumPy.

Source: the objective is that of AdaRound (Nagel et al. 2020, https://arxiv.org/abs/2004.10568,
equation 21), the mean squared error of the layer outputs on calibration data. Without the
activation, it is a quadratic form in the weights, given by second moments of the inputs. It is
minimized by GPTQ (Frantar et al. 2022, https://arxiv.org/abs/2210.17323), then by coordinate
descent over single weights, as in QuantEase (Behdin et al. 2023, https://arxiv.org/abs/2309.01885).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

DAMPING = 0.01
"""Penalty on the distance from the original weights, relative to the mean power of the inputs; it
fixes directions that the data does not excite."""
SWEEPS = 8
"""Maximum number of passes of the descent over all weights."""
SHARES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5)
"""Candidate ranges of a channel, as shares of its largest weight, for low bit widths."""
MANY = 64
"""Greatest integer from which clipping has no benefit, and the range is the largest weight."""


@dataclass(frozen=True, kw_only=True)
class Moments:
    """Second moments of the inputs and outputs of a layer, by group of channels.

    Attributes:
        inputs: moments of the quantized inputs, ``(groups, taps, taps)``.
        outputs: cross moments of the quantized inputs and the float outputs,
            ``(groups, taps, outputs)``.
    """

    inputs: np.ndarray
    outputs: np.ndarray


@dataclass(frozen=True, kw_only=True)
class Rounded:
    """Rounded weights.

    Attributes:
        weights: multiples of the steps, ``(groups, taps, outputs)``.
        largest: range of the weights of each output, ``(groups, 1, outputs)``; at least one weight
            has this magnitude.
        before: objective with weights rounded to nearest, relative to zero weights.
        after: objective with these weights, relative to zero weights.
    """

    weights: np.ndarray
    largest: np.ndarray
    before: float
    after: float


def round_weights(weights: np.ndarray, moments: Moments, top: float) -> Rounded:
    """Return weights rounded for the least output error.

    Args:
        weights: the float weights, ``(groups, taps, outputs)``.
        moments: moments of the layer on calibration data.
        top: the greatest integer, such as 7 for 4 bits; the least integer is ``-top``.

    Returns:
        The rounded weights. The range of each output is its largest rounded weight, so a quantizer
        with the range policy ``"current"`` reproduces the weights.
    """
    # float64: Cholesky factors of nearly singular moments fail or lose accuracy in float32.
    gram, target = _damped(weights.astype(np.float64), moments)
    held, whole = _held(weights), np.abs(weights).max(axis=1, keepdims=True).astype(np.float64)
    whole = np.maximum(whole, 1e-12)
    order, factor = _order(gram)
    found, step, least = np.zeros_like(target), whole / top, np.full(whole.shape, np.inf)
    for share in SHARES if top < MANY else SHARES[:1]:
        tried = share * whole / top
        integers = _compensate(target, order, factor, tried, top)
        # A quantizer that takes its range from the weights must find the range tried here.
        integers = np.where(held, top * np.sign(weights), integers)
        error = _errors(integers * tried, target, gram)
        found, step = np.where(error < least, integers, found), np.where(error < least, tried, step)
        least = np.minimum(error, least)
    found = _descend(found, target, gram, step, top, held)
    # Where rounding to nearest is better, use it: the heuristics don't guarantee an improvement.
    nearest = np.clip(np.rint(weights / (whole / top)), -top, top) * whole / top
    error, plain = _errors(found * step, target, gram), _errors(nearest, target, gram)
    rounded = np.where(error <= plain, found * step, nearest)
    # The objective of zero weights makes errors comparable between layers.
    scale = max(float(_errors(np.zeros_like(target), target, gram).sum()), 1e-30)
    return Rounded(
        weights=rounded.astype(np.float32),
        largest=np.where(error <= plain, step * top, whole).astype(np.float32),
        before=float(plain.sum()) / scale,
        after=float(np.minimum(error, plain).sum()) / scale,
    )


def _damped(weights: np.ndarray, moments: Moments) -> tuple[np.ndarray, np.ndarray]:
    """Return the damped quadratic form, and its minimizer before rounding."""
    # The inputs are quantized and the outputs are not: the best weights differ from the given ones.
    gram = moments.inputs.astype(np.float64)
    taps = gram.shape[1]
    power = np.trace(gram, axis1=1, axis2=2)[:, None, None] / taps
    ridge = np.maximum(DAMPING * power, 1e-12) * np.eye(taps)
    target = np.linalg.solve(gram + ridge, moments.outputs + ridge @ weights)
    return gram + ridge, target


def _held(weights: np.ndarray) -> np.ndarray:
    """Return a mask of the largest weight of each output, fixed at the greatest integer."""
    magnitude = np.abs(weights)
    places = magnitude.argmax(axis=1)[:, None, :]
    held = np.zeros(weights.shape, bool)
    np.put_along_axis(held, places, True, axis=1)
    return np.asarray(held & (magnitude > 0))


def _order(gram: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the order of the taps, and the upper Cholesky factors of their inverse moments."""
    # Taps with large inputs first, while many others can still compensate ("act order" of GPTQ);
    # one order for all groups, so that they are rounded in one pass.
    order = np.argsort(-np.diagonal(gram.sum(axis=0)))
    inverse = np.linalg.inv(gram[:, order][:, :, order])
    # Symmetrize: the inverse is symmetric only up to rounding.
    root = np.linalg.cholesky((inverse + np.swapaxes(inverse, 1, 2)) / 2)
    return order, np.swapaxes(root, 1, 2)


def _compensate(
    target: np.ndarray, order: np.ndarray, factor: np.ndarray, step: np.ndarray, top: float
) -> np.ndarray:
    """Return integers, rounded tap by tap with compensation of earlier errors (GPTQ)."""
    left, found = target[:, order], np.empty_like(target)
    for index, place in enumerate(order):
        integers = np.clip(np.rint(left[:, index] / step[:, 0]), -top, top)
        found[:, place] = integers
        error = (left[:, index] - integers * step[:, 0]) / factor[:, index, index, None]
        left[:, index + 1 :] -= factor[:, index, index + 1 :, None] * error[:, None, :]
    return found


def _descend(
    start: np.ndarray,
    target: np.ndarray,
    gram: np.ndarray,
    step: np.ndarray,
    top: float,
    held: np.ndarray,
) -> np.ndarray:
    """Return integers after coordinate descent, until no integer changes."""
    integers = start.copy()
    slope = gram @ (integers * step - target)
    for _ in range(SWEEPS):
        changed = False
        for index in range(integers.shape[1]):
            old = integers[:, index]
            # For all groups and outputs at once: outputs don't interact.
            ideal = old - slope[:, index] / gram[:, index, index, None] / step[:, 0]
            new = np.where(held[:, index], old, np.clip(np.rint(ideal), -top, top))
            if (new == old).all():
                continue
            changed = True
            # Update the gradient for the changed tap, instead of a full product.
            slope += gram[:, :, index, None] * ((new - old) * step[:, 0])[:, None, :]
            integers[:, index] = new
        if not changed:
            break
    return integers


def _errors(weights: np.ndarray, target: np.ndarray, gram: np.ndarray) -> np.ndarray:
    """Return the quadratic form of the distance from the unrounded optimum, for each output."""
    distance = weights - target
    return np.asarray(np.sum(distance * (gram @ distance), axis=1, keepdims=True))
