"""PyTorch's fake quantization: bit-equal to NumPy's and Keras's, and its gradients."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import quantization_oracle as oracle
import tensorflow as tf
import torch

from qat_lib import fake_quantize as keras_fake_quantize
from qat_lib.core.ranges import AMAX_FLOOR, greatest_integer
from qat_lib.torch.fake_quantization import fake_quantize, fake_quantize_fp8, quantization_scale

KINDS = [
    {},
    {"narrow_range": True},
    {"unsigned": True},
    *({"num_bits": bits, "narrow_range": bits % 2 == 0} for bits in range(2, 9)),
    *({"num_bits": bits, "unsigned": True} for bits in range(2, 9)),
]


def hard_values(amax: float) -> np.ndarray:
    """Return values around every tie and bound of a range.

    Extremes, subnormals and random ones, too.
    """
    step = np.float32(max(amax, AMAX_FLOOR)) / np.float32(127)
    ties = np.arange(-300, 301, dtype=np.float32) / 2 * step
    near = np.concatenate([np.nextafter(ties, np.float32(side)) for side in (-1e9, 1e9)])
    extremes = [0.0, -0.0, 1e-45, -1e-45, 1e-38, 3e38, -3e38, np.inf, -np.inf, amax, -amax]
    random = np.random.default_rng(3).normal(0, max(amax, 1e-6), 4096)
    return np.concatenate([ties, near, extremes, random]).astype(np.float32)


def same_bits(found: Any, expected: np.ndarray) -> None:
    """Fail where two arrays differ in a bit.

    Zeros of both signs are one zero, as in integers.
    """
    found = np.asarray(found) + np.float32(0)
    np.testing.assert_array_equal(
        found.view(np.int32), (expected + np.float32(0)).view(np.int32), strict=True
    )


@pytest.mark.parametrize("options", KINDS, ids=str)
@pytest.mark.parametrize("amax", [0.0, 1e-7, AMAX_FLOOR, 0.037, 1.0, 6.0, 3.3e3])
def test_fake_quantize_equals_numpy_and_keras(amax: float, options: dict[str, Any]) -> None:
    x = hard_values(amax)
    found = fake_quantize(torch.from_numpy(x), amax, **options).numpy()
    same_bits(found, oracle.fake_quantize(x, amax, **options))
    same_bits(found, keras_fake_quantize(tf.constant(x), amax, **options).numpy())


@pytest.mark.parametrize("options", KINDS, ids=str)
@pytest.mark.parametrize("axis", [0, 1, 3])
def test_per_channel_fake_quantize_equals_numpy_keras(axis: int, options: dict[str, Any]) -> None:
    x = np.random.default_rng(axis).normal(size=(4, 5, 3, 6)).astype(np.float32)
    amax = oracle.range_of(x, (axis,)) * np.float32(0.8)
    amax.flat[0] = 0.0
    found = fake_quantize(torch.from_numpy(x), torch.from_numpy(amax), **options).numpy()
    same_bits(found, oracle.fake_quantize(x, amax, **options))
    same_bits(found, keras_fake_quantize(tf.constant(x), amax, **options).numpy())


def test_fake_quantize_keeps_nan() -> None:
    found = fake_quantize(torch.tensor([float("nan"), 1.0]), 1.0)
    assert found.isnan().tolist() == [True, False]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_fake_quantize_keeps_the_data_type(dtype: torch.dtype) -> None:
    x = torch.linspace(-2, 2, 33).to(dtype)
    found = fake_quantize(x, 1.5)
    assert found.dtype == dtype
    torch.testing.assert_close(found, fake_quantize(x.float(), 1.5).to(dtype), rtol=0, atol=0)


@pytest.mark.parametrize("options", KINDS, ids=str)
@pytest.mark.parametrize("learned", [False, True])
def test_fake_quantize_gradients_equal_keras(learned: bool, options: dict[str, Any]) -> None:
    generator = np.random.default_rng(8)
    x = generator.normal(size=(6, 40)).astype(np.float32)
    weight = generator.normal(size=x.shape).astype(np.float32)
    amax = oracle.range_of(x, (0,)) * np.float32(0.7)
    ours = torch.from_numpy(x).requires_grad_(), torch.from_numpy(amax).requires_grad_()
    y = fake_quantize(*ours, learned=learned, **options)
    (y * torch.from_numpy(weight)).sum().backward()
    theirs = tf.Variable(x), tf.Variable(amax)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(keras_fake_quantize(*theirs, learned=learned, **options) * weight)
    dx, damax = tape.gradient(loss, theirs)
    np.testing.assert_array_equal(ours[0].grad.numpy(), dx.numpy())
    assert 0 < np.count_nonzero(dx.numpy()) < x.size
    if learned:
        # The order of a sum differs by processor. Where terms cancel, their rounding is left: that
        # of integers up to ``high``, in the gradient's unit.
        high = greatest_integer(options.get("num_bits", 8), options.get("unsigned", False))
        terms = np.abs(weight).sum(axis=1, keepdims=True) / np.sqrt(x.shape[1] * high)
        rounding = (np.finfo(np.float32).eps * terms).max()
        np.testing.assert_allclose(ours[1].grad, damax, rtol=2e-5, atol=rounding)
    else:
        assert ours[1].grad is None
        assert damax is None


def test_empty_fake_quantize_has_empty_gradients() -> None:
    x, amax = torch.zeros(0, 3, requires_grad=True), torch.zeros(0, 1, requires_grad=True)
    fake_quantize(x, amax, learned=True).sum().backward()
    assert (x.grad.shape, amax.grad.shape) == ((0, 3), (0, 1))


def test_quantization_scale_has_the_floor_of_ranges() -> None:
    scale = quantization_scale(torch.tensor([0.0, 127.0, 1.0]))
    np.testing.assert_array_equal(scale.numpy(), oracle.scale([0.0, 127.0, 1.0]))
    assert quantization_scale(torch.tensor(15.0), 4, unsigned=True).item() == 1.0


@pytest.mark.parametrize("amax", [0.0, 1e-3, 1.7, 448.0, 1e4])
def test_fp8_is_bit_equal_to_numpy(amax: float) -> None:
    x = hard_values(amax)
    scale = np.float32(max(np.float32(amax), np.float32(AMAX_FLOOR))) / np.float32(448)
    with np.errstate(over="ignore"):
        kept = np.clip(x / scale, np.float32(-448), np.float32(448))
    expected = kept.astype(ml_dtypes.float8_e4m3fn).astype(np.float32) * scale
    same_bits(fake_quantize_fp8(torch.from_numpy(x), amax).numpy(), expected)


def test_fp8_gradient_is_clip_mask() -> None:
    x = torch.linspace(-3, 3, 31, requires_grad=True)
    fake_quantize_fp8(x, 2.0).sum().backward()
    assert x.grad is not None
    assert x.grad.bool().tolist() == (x.abs() <= 2.0).tolist()
    assert torch.isnan(fake_quantize_fp8(torch.tensor(float("nan")), 1.0))
