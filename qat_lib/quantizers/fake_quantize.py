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

    Returns:
        A tensor with the shape and data type of ``x``. NaN stays NaN, infinities saturate.

    The gradient to ``x`` is the clip-mask straight-through estimator: 1 where the integers reach,
    else 0. They reach from ``-amax``, or without ``narrow_range`` from one step below it, or
    unsigned from 0, to ``amax``.
    """
    low, high = integer_bounds(num_bits, narrow_range, unsigned)
    run = _learned_quantize if learned else _masked_quantize
    y = run(tf.cast(x, tf.float32), tf.maximum(tf.cast(amax, tf.float32), AMAX_FLOOR), low, high)
    return tf.cast(y, x.dtype)


def _masked_quantize(x: Any, amax: Any, low: float, high: float) -> Any:
    @tf.custom_gradient
    def quantize(x: Any, amax: Any) -> Any:
        scale = amax / high
        y = tf.clip_by_value(tf.round(x / scale), low, high) * scale

        def grad(dy: Any) -> tuple[Any, None]:
            return tf.where(_inside(x, amax, low / high), dy, tf.zeros_like(dy)), None

        return y, grad

    return quantize(x, amax)


def _learned_quantize(x: Any, amax: Any, low: float, high: float) -> Any:
    @tf.custom_gradient
    def quantize(x: Any, amax: Any) -> Any:
        scale = amax / high
        ratio = x / scale
        q = tf.clip_by_value(tf.round(ratio), low, high)

        def grad(dy: Any) -> tuple[Any, Any]:
            inside = _inside(x, amax, low / high)
            dx = tf.where(inside, dy, tf.zeros_like(dy))
            # d(q * s)/ds is q - x/s inside the range and q outside (LSQ, equation 3); amax = s *
            # high.
            dscale = tf.where(inside, q - ratio, q) * dy
            size = tf.cast(tf.size(x) // tf.maximum(tf.size(amax), 1), tf.float32)
            # By the chain rule 1 / high; the root is the paper's scale of the step's gradient
            # (section 2.2).
            return dx, _sum_to(dscale, amax) / high / tf.sqrt(size * high)

        return q * scale, grad

    return quantize(x, amax)


def _inside(x: Any, amax: Any, low: float) -> Any:
    """Return where a value lies from ``low * amax`` to ``amax``.

    Its gradient passes there.
    """
    return (x >= low * amax) & (x <= amax)


def _sum_to(value: Any, like: Any) -> Any:
    """Sum ``value`` down to the shape that ``like`` broadcast from."""
    axes, _ = tf.raw_ops.BroadcastGradientArgs(s0=tf.shape(like), s1=tf.shape(value))
    return tf.reshape(tf.reduce_sum(value, axis=axes), tf.shape(like))
