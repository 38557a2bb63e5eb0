"""The op's shortened passes against the ones that it spells out, bit for bit."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from qat_lib import TensorQuantizer
from qat_lib.core.ranges import AMAX_FLOOR, integer_bounds
from qat_lib.keras.quantizers.fake_quantize import fake_quantize, quantize_whole, quantize_within

KINDS = [(8, False, False), (8, True, False), (8, False, True), (2, True, False), (16, False, True)]
"""Bits, narrow, unsigned."""


def spelled_out(x: Any, amax: Any, bounds: tuple[float, float]) -> Any:
    """Return the values of the op's definition, in its order of operations."""
    scale = tf.maximum(tf.cast(amax, tf.float32), AMAX_FLOOR) / bounds[1]
    return tf.clip_by_value(tf.round(tf.cast(x, tf.float32) / scale), *bounds) * scale


def passing(x: Any, amax: Any, bounds: tuple[float, float]) -> Any:
    """Return where the gradient passes, by the op's definition."""
    amax = tf.maximum(tf.cast(amax, tf.float32), AMAX_FLOOR)
    return ((x >= bounds[0] / bounds[1] * amax) & (x <= amax)).numpy()


def awkward(amax: float, high: float) -> np.ndarray:
    """Return ties, bounds, their neighbours and random values around them, and special ones."""
    step = np.float32(amax) / np.float32(high)
    near = min(int(high), 300)
    ties = (np.arange(-2 * near - 4, 2 * near + 5) * np.float32(0.5)) * step
    bounds = np.float32([amax, -amax, -amax * (high + 1) / high])
    points = np.concatenate([ties, bounds])
    rest = np.random.default_rng(0).normal(0, amax, 2000)
    special = [0.0, -0.0, 1e-40, np.inf, -np.inf, np.nan, 3e38, -3e38]
    around = [np.nextafter(points, np.float32(side)) for side in (-np.inf, np.inf)]
    return np.concatenate([points, *around, rest, special]).astype(np.float32)


@pytest.mark.matrix_except("0.37-*", "1e-30-kind0")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("amax", [0.37, 6.0, 1e-30, 2.0**20])
def test_quantize_within_equals_the_definition(kind: tuple[int, bool, bool], amax: float) -> None:
    bounds = integer_bounds(*kind)
    x = tf.constant(awkward(max(amax, AMAX_FLOOR), bounds[1]))
    upstream = tf.random.stateless_normal(x.shape, [1, 2])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = quantize_within(x, amax, bounds)
    np.testing.assert_array_equal(y, spelled_out(x, amax, bounds))
    dx = tape.gradient(y, x, output_gradients=upstream).numpy()
    np.testing.assert_array_equal(dx, np.where(passing(x, amax, bounds), upstream, 0))


@pytest.mark.parametrize("shape", [(), (1, 4), (1, 1)])
def test_infinite_gradient_is_passed_or_stays_visible(shape: tuple[int, ...]) -> None:
    x = tf.constant([[0.5, 2.0, -0.5, 0.25]])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = quantize_within(x, tf.ones(shape), (-128.0, 127.0))
    upstream = tf.constant([[np.inf, 3.0, np.nan, -0.0]])
    dx = tape.gradient(y, x, output_gradients=upstream).numpy()
    np.testing.assert_array_equal(dx, [[np.inf, 0.0, np.nan, 0.0]])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
@pytest.mark.parametrize("learned", [False, True])
def test_other_types_keep_their_gradient(dtype: str, learned: bool) -> None:
    x = tf.cast(awkward(1.5, 127.0), dtype)
    x = tf.boolean_mask(x, tf.math.is_finite(x))
    upstream = tf.cast(tf.random.stateless_normal(x.shape, [1, 2]), dtype)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = quantize_within(x, 1.5, (-128.0, 127.0), learned=learned)
    dx = tape.gradient(y, x, output_gradients=upstream)
    assert (y.dtype, dx.dtype) == (x.dtype, x.dtype)
    mask = passing(tf.cast(x, tf.float32), 1.5, (-128.0, 127.0))
    np.testing.assert_array_equal(dx.numpy(), np.where(mask, upstream.numpy(), 0))


def weights() -> np.ndarray:
    """Return channels with zeros, denormals, small, ordinary and large values."""
    w = np.random.default_rng(1).standard_normal((3, 3, 16, 8)).astype(np.float32)
    return w * np.float32([0.0, 1e-42, 1e-7, 1e-3, 1.0, 3.7, 1e6, 1e30])


@pytest.mark.matrix_except("None-False-8", "axes1-True-4", "axes2-True-16")
@pytest.mark.parametrize("bits", [2, 4, 8, 16])
@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("axes", [None, (-1,), (-2, -1)])
def test_weights_need_no_bounds(bits: int, narrow: bool, axes: tuple[int, ...] | None) -> None:
    options: dict[str, Any] = {"num_bits": bits, "narrow_range": narrow, "channel_axes": axes}
    quantizer = TensorQuantizer(range_policy="current", **options)
    w = tf.constant(weights())
    amax = quantizer.range_of(w)
    bounds = integer_bounds(bits, narrow)
    upstream = tf.random.stateless_normal(w.shape, [3, 4])
    with tf.GradientTape() as tape:
        tape.watch(w)
        y = quantizer(w, training=True)
    assert y.numpy().tobytes() == spelled_out(w, amax, bounds).numpy().tobytes()
    dw = tape.gradient(y, w, output_gradients=upstream).numpy()
    assert passing(w, amax, bounds).all()
    assert dw.tobytes() == upstream.numpy().tobytes()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_weights_that_are_not_finite_give_the_same(bad: float) -> None:
    values = weights()
    values[0, 0, 0, 4] = bad
    quantizer = TensorQuantizer(range_policy="current", narrow_range=True, channel_axes=(-1,))
    w = tf.constant(values)
    magnitudes = tf.reduce_max(tf.abs(w), axis=[0, 1, 2], keepdims=True)
    np.testing.assert_array_equal(quantizer.range_of(w), magnitudes)
    expected = spelled_out(w, magnitudes, (-127.0, 127.0))
    np.testing.assert_array_equal(quantizer(w), expected)
    assert np.isnan(quantizer(w)[0, 0, 0, 4])


def test_quantize_whole_keeps_the_data_type() -> None:
    x = tf.constant([0.5, -1.0, 0.26], tf.bfloat16)
    y = quantize_whole(x, lambda _: 1.0, 127.0)
    assert y.dtype == x.dtype
    np.testing.assert_array_equal(y, tf.cast(spelled_out(x, 1.0, (-127.0, 127.0)), x.dtype))


@pytest.mark.parametrize("unsigned", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_range_is_that_of_magnitudes(unsigned: bool, dtype: str) -> None:
    for values in (weights(), -np.abs(weights()), np.full((2, 2), np.nan), np.float32([1, np.nan])):
        x = tf.cast(values, dtype)
        quantizer = TensorQuantizer(unsigned=unsigned)
        expected = tf.reduce_max(quantizer.magnitude(x))
        np.testing.assert_array_equal(quantizer.range_of(x), expected)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_learned_range_counts_infinities_as_the_ends_of_the_integers(dtype: str) -> None:
    amax, steps = tf.Variable(1.27), np.float64([127.0, -128.0, 4 - 0.036 / 0.01])
    x = tf.cast([np.inf, -np.inf, 0.036], dtype)
    with tf.GradientTape() as tape:
        y = fake_quantize(x, amax, learned=True)
    found = tape.gradient(y, amax, output_gradients=tf.cast([3.0, 1.0, 2.0], dtype))
    expected = np.dot(steps, [3.0, 1.0, 2.0]) / 127.0 / np.sqrt(3 * 127.0)
    np.testing.assert_allclose(found, expected, rtol=1e-5 if dtype == "float32" else 1e-4)
