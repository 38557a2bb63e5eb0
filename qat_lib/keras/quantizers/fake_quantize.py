"""Fake-quantize op: QuantizeLinear followed by DequantizeLinear, with a gradient.

``y = clip(round_half_even(x / s), low, high) * s`` with ``s = amax / high``. This is the arithmetic
of ONNX QuantizeLinear/DequantizeLinear and of TensorRT's explicit quantization, in float32 and in
this order of operations, so the exported graph is bit-exact. ``high`` is ``2**(bits-1) - 1`` for
signed integers and ``2**bits - 1`` for unsigned integers; the zero point is 0 for both.
(TensorFlow's QuantizeAndDequantize ops multiply by a rounded inverse of the scale instead, and
differ if ``x / s`` is near a tie; here they are applied to ``x / s`` with a scale of 1.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from qat_lib.core.ranges import AMAX_FLOOR, greatest_integer, integer_bounds
from qat_lib.keras.quantizers.branching import Branch, compiles_with_xla, in_graph
from qat_lib.keras.quantizers.large_weights import spread


def quantization_scale(amax: Any, num_bits: int = 8, unsigned: bool = False) -> Any:
    """Return the float32 scale, ``max(amax, AMAX_FLOOR)`` over the greatest integer."""
    amax = tf.maximum(tf.cast(amax, tf.float32), AMAX_FLOOR)
    return scale_of(amax, greatest_integer(num_bits, unsigned))


def scale_of(amax: Any, high: float) -> Any:
    """Return ``amax / high``, rounded once, in eager mode, graphs and XLA.

    TensorFlow's graph optimizer and XLA replace division by a constant with multiplication by its
    rounded inverse. For 255, the result differs in the last bit more often than not. The divisions
    used here are not replaced.
    """
    if tf.executing_eagerly():
        return amax / high
    if compiles_with_xla():
        # To XLA, the divisor is not a constant. ``amax`` is always positive.
        return amax / tf.where(amax > 0.0, high, 1.0)
    return tf.math.divide_no_nan(amax, high)


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
        amax: range, a scalar or a tensor that broadcasts against ``x``; at least ``AMAX_FLOOR``.
        num_bits: bit width of the integers, 2 to 16. Default 8.
        narrow_range: whether to exclude the least integer (-128). Default False: activations
            saturate at [-128, 127], like QuantizeLinear; weights use True, for [-127, 127].
        unsigned: whether to use unsigned integers: 255 steps over ``[0, amax]`` instead of 127,
            with negative values clipped to zero. Default False. TensorRT supports only signed
            integers.
        learned: whether a gradient flows to ``amax`` (LSQ, Esser et al. 2020,
            https://arxiv.org/abs/1902.08153). It is the gradient of the step ``s = amax / high`` of
            the paper, with its scale ``1 / sqrt(N * high)`` for N elements per range: train ``s``,
            and pass ``amax = s * high``.

    Returns:
        A tensor with the shape and data type of ``x``. NaN remains NaN, infinities saturate.

    The gradient to ``x`` is the clip-mask straight-through estimator: 1 inside the range of the
    integers, else 0. This range ends at ``amax`` and starts at ``-amax`` with ``narrow_range``, one
    step below ``-amax`` without it, and at 0 if unsigned.
    """
    bounds = integer_bounds(num_bits, narrow_range, unsigned)
    return quantize_within(x, amax, bounds, learned=learned)


def quantize_within(
    x: Any,
    amax: Any,
    bounds: tuple[float, float],
    *,
    learned: bool = False,
    branch: Branch | None = None,
    training: bool = False,
) -> Any:
    """Fake-quantize with the least and greatest integer as ``bounds``; see ``fake_quantize``.

    If ``branch`` is off, values and gradients pass unchanged. In graphs of a ``training`` step, the
    gradient mask is computed in the forward pass.
    """
    amax = tf.maximum(tf.cast(amax, tf.float32), AMAX_FLOOR)
    if learned:
        return _learned_quantize(x, amax, bounds, branch)
    return _masked_quantize(x, amax, bounds, branch, gate=training and in_graph())


def quantize_whole(
    x: Any, range_of: Callable[[Any], Any], high: float, *, branch: Branch | None = None
) -> Any:
    """Fake-quantize a tensor with ``range_of(x)``, its largest magnitudes, without saturation.

    ``|x| <= amax`` implies ``|round(x / s)| <= high``, so neither values nor gradients are clipped:
    the straight-through gradient is the upstream gradient. If ``branch`` is off, the range is not
    computed.
    """

    @tf.custom_gradient
    def quantize(x: Any) -> Any:
        def values(x: Any) -> Any:
            scale = scale_of(tf.maximum(tf.cast(range_of(x), tf.float32), AMAX_FLOOR), high)
            ratio = tf.cast(x, tf.float32) / spread(scale, x)
            return tf.cast(tf.round(ratio) * scale, x.dtype)

        return _run(branch, x, values), lambda dy: dy

    return quantize(x)


def _masked_quantize(
    x: Any, amax: Any, bounds: tuple[float, float], branch: Branch | None, gate: bool
) -> Any:
    @tf.custom_gradient
    def quantize(x: Any) -> Any:
        y = _run(branch, x, lambda x: quantized_values(x, amax, bounds))
        if gate:
            inside = _inside(x, amax, bounds)
            return gated(y, inside if branch is None else inside | ~branch.on)
        return y, lambda dy: _run(branch, dy, lambda dy: masked(dy, x, amax, bounds))

    return quantize(x)


def gated(y: Any, passes: Any) -> tuple[Any, Callable[[Any], Any]]:
    """Return a value and its gradient function: the upstream gradient where ``passes``, else 0.

    Only the mask is kept for the backward pass, at one byte per element.
    """
    # Compute the mask now: TensorFlow could schedule it late, and keep its inputs in memory until
    # then.
    with tf.control_dependencies([passes]):
        y = tf.identity(y)

    def grad(dy: Any) -> Any:
        # Cast after ``dy`` exists: an earlier cast would keep four bytes per element, not one.
        with tf.control_dependencies([dy]):
            factors = tf.cast(passes, dy.dtype)
        # Multiply, don't select: non-finite gradients must remain visible, as in ReLU's gradient.
        return dy * factors

    return y, grad


def _learned_quantize(x: Any, amax: Any, bounds: tuple[float, float], branch: Branch | None) -> Any:
    @tf.custom_gradient
    def quantize(x: Any, amax: Any) -> Any:
        y = _run(branch, x, lambda x: quantized_values(x, amax, bounds))

        def grad(dy: Any) -> tuple[Any, Any]:
            dx = _run(branch, dy, lambda dy: masked(dy, x, amax, bounds))
            return dx, range_gradient(dy, dx, x, y, amax, bounds, branch)

        return y, grad

    return quantize(x, amax)


def _run(branch: Branch | None, x: Any, compute: Any, otherwise: Any = None) -> Any:
    return compute(x) if branch is None else branch.run(x, compute, otherwise)


def quantized_values(x: Any, amax: Any, bounds: tuple[float, float]) -> Any:
    """Return the multiples of the scale nearest to ``x``."""
    scale = scale_of(amax, bounds[1])
    return tf.cast(_integers(tf.cast(x, tf.float32) / scale, bounds) * scale, x.dtype)


def _integers(ratio: Any, bounds: tuple[float, float]) -> Any:
    low, high = bounds
    if compiles_with_xla():
        return tf.clip_by_value(tf.round(ratio), low, high)
    # Rounds half to even and clips in one pass over memory; for [low, high] the op's scale is 1.
    return tf.raw_ops.QuantizeAndDequantizeV4(
        input=ratio,
        input_min=low,
        input_max=high,
        signed_input=low < 0,
        narrow_range=low == -high,
        num_bits=int(high - low).bit_length(),
        range_given=True,
        round_mode="HALF_TO_EVEN",
    )


def masked(dy: Any, x: Any, amax: Any, bounds: tuple[float, float]) -> Any:
    """Return ``dy`` where ``x`` is inside the range of the integers, else 0.

    Outside, a non-finite ``dy`` may remain non-finite, so that overflows are not hidden.
    """
    if amax.shape.rank == 0 and not compiles_with_xla():
        # One op with one pass over memory; its limits are scalars.
        return passed_between(dy, x, bounds[0] / bounds[1] * amax, amax)
    return tf.where(_inside(x, amax, bounds), dy, tf.zeros_like(dy))


def passed_between(dy: Any, x: Any, low: Any, high: Any) -> Any:
    """Return ``dy`` where ``x`` is NaN or within the scalars ``low`` and ``high``, else 0."""
    return tf.cast(
        tf.raw_ops.QuantizeAndDequantizeV4Grad(
            gradients=tf.cast(dy, tf.float32),
            input=tf.cast(x, tf.float32),
            input_min=low,
            input_max=high,
        ).input_backprop,
        dy.dtype,
    )


def _inside(x: Any, amax: Any, bounds: tuple[float, float]) -> Any:
    """Return the mask of the values of ``x`` inside the range of the integers."""
    low, high = bounds
    x = tf.cast(x, tf.float32)
    return (x >= low / high * amax) & (x <= amax)


def range_gradient(
    dy: Any,
    dx: Any,
    x: Any,
    y: Any,
    amax: Any,
    bounds: tuple[float, float],
    branch: Branch | None = None,
) -> Any:
    """Return the LSQ gradient of the range, for a tensor ``x`` quantized to ``y``.

    ``dx`` is ``dy`` inside the range and 0 outside. If ``branch`` is off, the gradient is 0.
    """

    def gradient(dy: Any) -> Any:
        return _range_gradient(dy, dx, x, y, amax, bounds)

    return _run(branch, dy, gradient, tf.zeros_like(amax))


def _range_gradient(
    dy: Any, dx: Any, x: Any, y: Any, amax: Any, bounds: tuple[float, float]
) -> Any:
    high = bounds[1]
    if y.dtype != tf.float32:  # rounded again to the lower precision
        x = tf.cast(x, tf.float32)
        y = quantized_values(x, amax, bounds)
    dy, dx = tf.cast(dy, tf.float32), tf.cast(dx, tf.float32)
    # d(q * s)/ds is q - x/s inside the range and q outside (LSQ, equation 3). With y = q * s these
    # are (y - x) / s and y / s, so in both cases the gradient is (dy * y - dx * x) / s.
    # multiply_no_nan: where dx is 0, an infinite x must not give NaN.
    slope = dy * y - tf.math.multiply_no_nan(x, dx)
    size = tf.cast(tf.size(x) // tf.maximum(tf.size(amax), 1), tf.float32)
    # 1 / high is the chain rule for amax = s * high; the root is the gradient scale of the paper
    # (section 2.2).
    return _sum_to(slope, amax) / scale_of(amax, high) / high / tf.sqrt(size * high)


def _sum_to(value: Any, like: Any) -> Any:
    """Return ``value`` summed to the shape of ``like``, the reverse of broadcasting."""
    axes, _ = tf.raw_ops.BroadcastGradientArgs(s0=tf.shape(like), s1=tf.shape(value))
    return tf.reshape(tf.reduce_sum(value, axis=axes), tf.shape(like))
