"""Rounding of one layer's weights for the least error of its outputs, in NumPy.

Source: the objective is that of AdaRound (Nagel et al. 2020, https://arxiv.org/abs/2004.10568,
equation 21): the mean squared error of a layer's outputs on calibration data. For a layer without
its activation that is a quadratic form in the weights, given by second moments of its inputs.
It is solved by GPTQ (Frantar et al. 2022, https://arxiv.org/abs/2210.17323), then by descent over
one weight at a time, as QuantEase (Behdin et al. 2023, https://arxiv.org/abs/2309.01885).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

DAMPING = 0.01
"""Weight of the original weights in the objective, of the mean power of the inputs: without it
directions that the data lacks would be free."""
SWEEPS = 8
"""Most times that the descent comes by every weight."""
SHARES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5)
"""Shares of the largest weight among which a channel's range is chosen, with few integers."""
MANY = 64
"""Greatest integer from which on clipping gains nothing, and a range is the largest weight."""


@dataclass(frozen=True, kw_only=True)
class Moments:
    """Second moments of a layer's inputs and outputs, for each of its groups of channels.

    Attributes:
        inputs: ``(groups, taps, taps)``, of the quantized inputs with one another.
        outputs: ``(groups, taps, outputs)``, of these with the float outputs.
    """

    inputs: np.ndarray
    outputs: np.ndarray


@dataclass(frozen=True, kw_only=True)
class Rounded:
    """Rounded weights.

    Attributes:
        weights: multiples of the steps, ``(groups, taps, outputs)``.
        largest: range of each output's weights, ``(groups, 1, outputs)``; one weight has it.
        before: the objective with weights rounded to nearest, over that of zero weights.
        after: the same with these weights.
    """

    weights: np.ndarray
    largest: np.ndarray
    before: float
    after: float


def round_weights(weights: np.ndarray, moments: Moments, top: float) -> Rounded:
    """Return weights rounded for the least error of the outputs.

    Args:
        weights: the float weights, ``(groups, taps, outputs)``.
        moments: what the layer was seen to read and make.
        top: the greatest integer, such as 7 for 4 bits; the least is its negative.

    Returns:
        The weights. Each output's range is that of its largest rounded weight, so that a quantizer
        whose range is always the weights' own reproduces them.
    """
    gram, target = _damped(weights.astype(np.float64), moments)
    held, whole = _held(weights), np.abs(weights).max(axis=1, keepdims=True).astype(np.float64)
    whole = np.maximum(whole, 1e-12)
    order, factor = _order(gram)
    found, step, least = np.zeros_like(target), whole / top, np.full(whole.shape, np.inf)
    for share in SHARES if top < MANY else SHARES[:1]:
        tried = share * whole / top
        integers = _compensate(target, order, factor, tried, top)
        integers = np.where(held, top * np.sign(weights), integers)
        error = _errors(integers * tried, target, gram)
        found, step = np.where(error < least, integers, found), np.where(error < least, tried, step)
        least = np.minimum(error, least)
    found = _descend(found, target, gram, step, top, held)
    nearest = np.clip(np.rint(weights / (whole / top)), -top, top) * whole / top
    error, plain = _errors(found * step, target, gram), _errors(nearest, target, gram)
    rounded = np.where(error <= plain, found * step, nearest)
    scale = max(float(_errors(np.zeros_like(target), target, gram).sum()), 1e-30)
    return Rounded(
        weights=rounded.astype(np.float32),
        largest=np.where(error <= plain, step * top, whole).astype(np.float32),
        before=float(plain.sum()) / scale,
        after=float(np.minimum(error, plain).sum()) / scale,
    )


def _damped(weights: np.ndarray, moments: Moments) -> tuple[np.ndarray, np.ndarray]:
    """Return the quadratic form, and the weights that are best before rounding."""
    gram = moments.inputs.astype(np.float64)
    taps = gram.shape[1]
    power = np.trace(gram, axis1=1, axis2=2)[:, None, None] / taps
    ridge = np.maximum(DAMPING * power, 1e-12) * np.eye(taps)
    target = np.linalg.solve(gram + ridge, moments.outputs + ridge @ weights)
    return gram + ridge, target


def _held(weights: np.ndarray) -> np.ndarray:
    """Return where each output's largest weight is, which keeps the greatest integer."""
    magnitude = np.abs(weights)
    places = magnitude.argmax(axis=1)[:, None, :]
    held = np.zeros(weights.shape, bool)
    np.put_along_axis(held, places, True, axis=1)
    return np.asarray(held & (magnitude > 0))


def _order(gram: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the order of the taps, and a factor of the inverse of their moments in it."""
    order = np.argsort(-np.diagonal(gram.sum(axis=0)))
    inverse = np.linalg.inv(gram[:, order][:, :, order])
    root = np.linalg.cholesky((inverse + np.swapaxes(inverse, 1, 2)) / 2)
    return order, np.swapaxes(root, 1, 2)


def _compensate(
    target: np.ndarray, order: np.ndarray, factor: np.ndarray, step: np.ndarray, top: float
) -> np.ndarray:
    """Return integers, each rounded after the errors of those before it were made up for."""
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
    """Return integers after setting one at a time to the best, until none changes."""
    integers = start.copy()
    slope = gram @ (integers * step - target)
    for _ in range(SWEEPS):
        changed = False
        for index in range(integers.shape[1]):
            old = integers[:, index]
            ideal = old - slope[:, index] / gram[:, index, index, None] / step[:, 0]
            new = np.where(held[:, index], old, np.clip(np.rint(ideal), -top, top))
            if (new == old).all():
                continue
            changed = True
            slope += gram[:, :, index, None] * ((new - old) * step[:, 0])[:, None, :]
            integers[:, index] = new
        if not changed:
            break
    return integers


def _errors(weights: np.ndarray, target: np.ndarray, gram: np.ndarray) -> np.ndarray:
    """Return each output's quadratic form of the distance from the best weights."""
    distance = weights - target
    return np.asarray(np.sum(distance * (gram @ distance), axis=1, keepdims=True))
