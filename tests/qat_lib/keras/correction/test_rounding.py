"""Rounding of one layer: on the grid, never worse than nearest, near the best there is."""

import itertools

import numpy as np
import pytest

from qat_lib.keras.correction.rounding import Moments, round_weights


def layer(groups=1, taps=12, outputs=5, seed=0, rows=400):
    """Return weights, moments and the rows of correlated inputs behind these."""
    generator = np.random.default_rng(seed)
    mixing = generator.normal(size=(groups, taps, taps))
    x = generator.normal(size=(groups, rows, taps)) @ mixing
    weights = generator.normal(size=(groups, taps, outputs)).astype("float32")
    turned = np.swapaxes(x, 1, 2)
    moments = Moments(inputs=turned @ x / rows, outputs=turned @ x @ weights / rows)
    return weights, moments, x


def output_error(x, weights, rounded):
    return np.square(x @ rounded - x @ weights).mean() / np.square(x @ weights).mean()


@pytest.mark.parametrize("groups", [1, 6])
@pytest.mark.parametrize("top", [1.0, 7.0, 127.0])
def test_rounded_weights_are_multiples_of_the_step(groups, top):
    weights, moments, _ = layer(groups)
    found = round_weights(weights, moments, top)
    integers = found.weights / (found.largest / top)
    np.testing.assert_allclose(integers, np.rint(integers), atol=1e-3)
    np.testing.assert_allclose(
        np.abs(found.weights).max(axis=1, keepdims=True), found.largest, rtol=1e-6
    )


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("groups", [1, 4])
def test_rounding_lowers_the_error_of_the_outputs(groups, seed):
    weights, moments, x = layer(groups, seed=seed)
    found = round_weights(weights, moments, 7.0)
    largest = np.abs(weights).max(axis=1, keepdims=True)
    nearest = np.clip(np.rint(weights / (largest / 7)), -7, 7) * (largest / 7)
    assert found.after < 0.8 * found.before
    assert output_error(x, weights, found.weights) < 0.7 * output_error(x, weights, nearest)


def test_rounding_finds_nearly_the_best():
    weights, moments, x = layer(taps=5, outputs=1, seed=4)
    found = round_weights(weights, moments, 2.0)
    step = float(found.largest[0, 0, 0]) / 2
    errors = []
    for integers in itertools.product(range(-2, 3), repeat=5):
        candidate = np.asarray(integers)[None, :, None] * step
        errors.append(output_error(x, weights, candidate))
    assert output_error(x, weights, found.weights) <= np.sort(errors)[5]


def test_rounding_follows_the_given_outputs():
    weights, moments, x = layer()
    other = weights * 0.9
    given = Moments(inputs=moments.inputs, outputs=moments.inputs @ other)
    found = round_weights(weights, given, 127.0)
    assert output_error(x, other, found.weights) < 0.1 * output_error(x, weights, found.weights)


def test_rounding_leaves_unseen_directions_near_the_weights():
    weights, moments, _ = layer(rows=3)
    found = round_weights(weights, moments, 127.0)
    assert np.abs(found.weights - weights).max() < 0.2


@pytest.mark.parametrize("groups", [1, 2])
def test_rounding_takes_dead_inputs_and_weights(groups):
    weights, moments, _ = layer(groups)
    weights[:, :, 0] = 0
    dead = Moments(inputs=0 * moments.inputs, outputs=0 * moments.outputs)
    found = round_weights(weights, dead, 7.0)
    assert np.isfinite(found.weights).all()
    assert (found.weights[:, :, 0] == 0).all()
    assert found.before >= found.after
