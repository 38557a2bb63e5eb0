"""Factors of channels: balanced, bounded, and none where they gain nothing."""

import numpy as np
import pytest

from qat_lib.keras.correction.channel_scales import LEAST_SHARE, Bound, Reading, channel_scales

LARGEST = np.float32([8.0, 1.0, 0.1, 0.01])


def reading(largest=LARGEST, kernel=None):
    largest = np.asarray(largest, np.float32)
    return Reading(largest=largest, power=largest**2 / 9, kernel=kernel)


def ones(channels=4, outputs=16, taps=9, seed=0):
    return np.random.default_rng(seed).normal(size=(channels, outputs, taps)).astype("float32")


def noise(largest, kernel, scales, samples=4000):
    """Return the error of a product of rounded values over the product's power."""
    generator = np.random.default_rng(1)
    x = generator.normal(size=(samples, len(largest))) * largest / 3
    w = kernel[:, :, 0]
    step = (largest * scales).max() / 127
    rounded = np.rint(x * scales / step) * step
    steps = np.abs(w / scales[:, None]).max(axis=0) / 127
    weights = np.rint(w / scales[:, None] / steps) * steps
    return (((rounded @ weights - x @ w) ** 2).mean(axis=0) / ((x @ w) ** 2).mean(axis=0)).mean()


def test_depthwise_readers_get_one_range():
    scales = channel_scales([reading()], [])
    np.testing.assert_allclose(LARGEST * scales, 8.0, rtol=1e-6)
    assert scales.dtype == np.float32


def test_quiet_channels_are_scaled_no_further_than_the_least_share():
    scales = channel_scales([reading([1.0, 1.0, 1e-6, 0.0])], [])
    np.testing.assert_allclose(scales, [1, 1, 1 / LEAST_SHARE, 1])


@pytest.mark.parametrize("largest", [[0.0, 0.0], [np.inf, 1.0], [np.nan, 1.0]])
def test_channels_without_a_range_are_not_scaled(largest):
    np.testing.assert_array_equal(channel_scales([reading(largest)], []), [1, 1])


def test_kernels_share_the_spread_with_the_activations():
    kernel = ones(taps=1) * np.float32([0.1, 1, 10, 100])[:, None, None]
    scales = channel_scales([reading(kernel=kernel)], [])
    assert noise(LARGEST, kernel, scales) < 0.2 * noise(LARGEST, kernel, np.ones(4))


@pytest.mark.parametrize("seed", range(4))
def test_scales_never_add_noise(seed):
    generator = np.random.default_rng(seed)
    largest = generator.lognormal(sigma=1.5, size=24).astype("float32")
    kernel = ones(24, 16, 1, seed) * generator.lognormal(sigma=1.5, size=(24, 1, 1))
    scales = channel_scales([reading(largest, kernel)], [])
    assert noise(largest, kernel, scales) < 1.05 * noise(largest, kernel, np.ones(24))


def test_equal_channels_are_not_scaled():
    kernel = np.ones((4, 3, 1), np.float32)
    np.testing.assert_allclose(channel_scales([reading(np.ones(4), kernel)], []), 1.0)


def test_bound_stays_beyond_the_range():
    kernel = ones(taps=1) * np.float32([0.01, 1, 1, 1])[:, None, None]
    largest = np.float32([6.0, 3.0, 3.0, 3.0])
    free = channel_scales([reading(largest, kernel)], [])
    bound = channel_scales([reading(largest, kernel)], [Bound(value=6.0, largest=largest)])
    assert 6.0 * free.min() < (largest * free).max()
    assert 6.0 * bound.min() >= (largest * bound).max() * (1 - 1e-6)


def test_readings_count_together():
    other = np.ascontiguousarray(LARGEST[::-1])
    scales = channel_scales([reading(), reading(other)], [])
    np.testing.assert_allclose(scales, scales[::-1], rtol=1e-5)
