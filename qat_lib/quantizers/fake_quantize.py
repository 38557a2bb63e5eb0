"""The fake-quantize op: what QuantizeLinear and DequantizeLinear do together, with a gradient.

``y = clip(round_half_even(x / s), low, high) * s`` with ``s = amax / high``, the arithmetic of ONNX
QuantizeLinear/DequantizeLinear and of TensorRT's explicit quantization, in float32 and in that
order of operations, so that the exported graph gives the same numbers to the last bit. ``high`` is
``2**(bits-1) - 1`` for signed integers and ``2**bits - 1`` for unsigned ones; the zero point is 0
for both. (TensorFlow's own QuantizeAndDequantize ops multiply by a rounded inverse of the scale
instead, and differ where ``x / s`` is near a tie.)
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from qat_lib.quantizers import kernels
from qat_lib.ranges import AMAX_FLOOR, greatest_integer, integer_bounds


def quantization_scale(amax: Any, num_bits: int = 8, unsigned: bool = False) -> Any:
    """Return the float32 scale: ``max(amax, AMAX_FLOOR)`` over the greatest integer."""
    return tf.maximum(tf.cast(amax, tf.float32), AMAX_FLOOR) / greatest_integer(num_bits, unsigned)


def fake_quantize(
    x: Any,
    amax: Any,
    *,
    num_bits: int = 8,
    narrow_range: bool = False,
    unsigned: bool = False,
    learned: bool = False,
    enabled: Any = None,
) -> Any:
    """Quantize to integers and dequantize again, with zero kept exactly.

    Args:
        x: float tensor of any shape.
        amax: range, a scalar or a tensor that broadcasts against ``x``; values below ``AMAX_FLOOR``
            count as that.
        num_bits: width of the integers, 2 to 16. Default 8.
        narrow_range: whether to leave out the least integer (-128). Default False: activations
            saturate as QuantizeLinear does, at [-128, 127]; weights use True and stay within [-127,
            127].
        unsigned: whether the integers are unsigned: 255 steps over ``[0, amax]`` where signed ones
            have 127, and what is below zero becomes zero. Default False. TensorRT runs signed ones
            only.
        learned: whether a gradient flows to ``amax`` (LSQ, Esser et al. 2020,
            https://arxiv.org/abs/1902.08153). It is that of the step ``s = amax / high`` in the
            paper, scaled by its ``1 / sqrt(N * high)`` with N the number of elements that share
            a range: train ``s``, and pass ``amax = s * high``.
        enabled: bool tensor; where False, ``x`` passes unchanged. Default None: always quantize.

    Returns:
        A tensor with the shape and data type of ``x``. NaN stays NaN, infinities saturate.

    The gradient to ``x`` is the clip-mask straight-through estimator: 1 where the integers reach,
    else 0. They reach from ``-amax``, or without ``narrow_range`` from one step below it, or
    unsigned from 0, to ``amax``.
    """
    x, amax = tf.convert_to_tensor(x), tf.maximum(tf.cast(amax, tf.float32), AMAX_FLOOR)
    low, high = integer_bounds(num_bits, narrow_range, unsigned)
    on = tf.constant(True) if enabled is None else enabled
    run = _learned_quantize if learned else _masked_quantize
    return run(x, amax, on, kernels.integers(low, high))


def quantize_by_channel(
    x: Any, axes: tuple[int, ...], *, num_bits: int, narrow_range: bool, enabled: Any
) -> Any:
    """Quantize ``x`` to signed integers by its own largest magnitudes over ``axes``.

    No gradient flows to the ranges.
    """
    low, high = integer_bounds(num_bits, narrow_range)
    bounds = kernels.integers(low, high)

    @tf.custom_gradient
    def quantize(x: Any) -> Any:
        y, amax = kernels.run_kernel(kernels.quantize_channels, x, axes, enabled, bounds)
        y = tf.ensure_shape(y, x.shape)
        return y, lambda dy: kernels.run_kernel(kernels.pass_inside, x, amax, enabled, bounds, dy)

    return quantize(x)


def _masked_quantize(x: Any, amax: Any, on: Any, bounds: Any) -> Any:
    @tf.custom_gradient
    def quantize(x: Any, amax: Any) -> Any:
        def grad(dy: Any) -> tuple[Any, None]:
            return kernels.run_kernel(kernels.pass_inside, x, amax, on, bounds, dy), None

        y = kernels.run_kernel(kernels.quantize_values, x, amax, on, bounds)
        return tf.ensure_shape(y, x.shape), grad

    return quantize(x, amax)


def _learned_quantize(x: Any, amax: Any, on: Any, bounds: Any) -> Any:
    @tf.custom_gradient
    def quantize(x: Any, amax: Any) -> Any:
        def grad(dy: Any) -> tuple[Any, Any]:
            dx, dscale = kernels.run_kernel(kernels.learn, x, amax, on, bounds, dy)
            size = tf.cast(tf.size(x) // tf.maximum(tf.size(amax), 1), tf.float32)
            high = bounds[1]
            # By the chain rule 1 / high, as amax = scale * high; the root is the paper's scale of
            # the step's gradient (LSQ, section 2.2).
            return dx, _sum_to(dscale, amax) / high / tf.sqrt(size * high)

        y = kernels.run_kernel(kernels.quantize_values, x, amax, on, bounds)
        return tf.ensure_shape(y, x.shape), grad

    return quantize(x, amax)


def _sum_to(value: Any, like: Any) -> Any:
    """Sum ``value`` down to the shape that ``like`` broadcast from."""
    axes, _ = tf.raw_ops.BroadcastGradientArgs(s0=tf.shape(like), s1=tf.shape(value))
    return tf.reshape(tf.reduce_sum(value, axis=axes), tf.shape(like))
