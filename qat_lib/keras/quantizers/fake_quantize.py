"""The fake-quantize op: what QuantizeLinear and DequantizeLinear do together, with a gradient.

``y = clip(round_half_even(x / s), low, high) * s`` with ``s = amax / high``, the arithmetic of ONNX
QuantizeLinear/DequantizeLinear and of TensorRT's explicit quantization, in float32 and in that
order of operations, so that the exported graph gives the same numbers to the last bit. ``high`` is
``2**(bits-1) - 1`` for signed integers and ``2**bits - 1`` for unsigned ones; the zero point is 0
for both. (TensorFlow's own QuantizeAndDequantize ops multiply by a rounded inverse of the scale
instead, and differ where ``x / s`` is near a tie; here they get ``x / s`` itself, with the scale 1.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from qat_lib.core.ranges import AMAX_FLOOR, integer_bounds
from qat_lib.keras.quantizers.branching import Branch, compiles_with_xla, in_graph
from qat_lib.keras.quantizers.large_weights import spread
from qat_lib.keras.quantizers.scale import scale_of


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
    """Do what ``fake_quantize`` does, with the least and greatest integer as ``bounds``.

    Where ``branch`` is off, values and gradients pass unchanged. In graphs of a ``training`` step
    the mask of the gradient is made with the values.
    """
    amax = tf.maximum(tf.cast(amax, tf.float32), AMAX_FLOOR)
    if learned:
        return _learned_quantize(x, amax, bounds, branch)
    return _masked_quantize(x, amax, bounds, branch, gate=training and in_graph())


def quantize_whole(
    x: Any, range_of: Callable[[Any], Any], high: float, *, branch: Branch | None = None
) -> Any:
    """Quantize a tensor by ``range_of`` it, its largest magnitudes: nothing saturates.

    ``|x| <= amax`` gives ``|round(x / s)| <= high``, so that neither values nor gradients need
    bounds: the straight-through gradient is the upstream gradient itself. Where ``branch`` is off,
    no range is computed.
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
    """Return a value with its gradient, which is the upstream one where ``passes``, else 0.

    Of all that the mask was computed from the step keeps the mask alone, a byte an element.
    """
    # The mask first, or what it is computed from would wait in memory while other layers run.
    with tf.control_dependencies([passes]):
        y = tf.identity(y)

    def grad(dy: Any) -> Any:
        # Only once ``dy`` is there, or the forward pass would leave four bytes an element.
        with tf.control_dependencies([dy]):
            factors = tf.cast(passes, dy.dtype)
        # A product: a gradient that is not finite stays visible, as in ReLU's own.
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
    # Rounds to even and clips in one pass over memory: over [low, high] its own scale is 1.
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
    """Return ``dy`` where the integers reach ``x``, else 0.

    A ``dy`` that is not finite may stay so elsewhere: no overflow is hidden.
    """
    if amax.shape.rank == 0 and not compiles_with_xla():
        return passed_between(dy, x, bounds[0] / bounds[1] * amax, amax)
    return tf.where(_inside(x, amax, bounds), dy, tf.zeros_like(dy))


def passed_between(dy: Any, x: Any, low: Any, high: Any) -> Any:
    """Return ``dy`` where ``x`` is from ``low`` to ``high``, scalars, or NaN; else 0."""
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
    """Return where the integers reach ``x``."""
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
    """Return the gradient of LSQ to the range, of a tensor ``x`` quantized to ``y``.

    ``dx`` is ``dy`` inside of the range and 0 outside. Where ``branch`` is off, it is 0.
    """

    def gradient(dy: Any) -> Any:
        return _range_gradient(dy, dx, x, y, amax, bounds)

    return _run(branch, dy, gradient, tf.zeros_like(amax))


def _range_gradient(
    dy: Any, dx: Any, x: Any, y: Any, amax: Any, bounds: tuple[float, float]
) -> Any:
    high = bounds[1]
    if y.dtype != tf.float32:  # rounded once more than the integers' multiples
        x = tf.cast(x, tf.float32)
        y = quantized_values(x, amax, bounds)
    dy, dx = tf.cast(dy, tf.float32), tf.cast(dx, tf.float32)
    # d(q * s)/ds is q - x/s inside the range and q outside (LSQ, equation 3): with y = q * s that
    # is (y - x) / s and y / s; amax = s * high. In both cases dy * y - dx * x.
    # Where dx is 0 an infinite x must not count.
    slope = dy * y - tf.math.multiply_no_nan(x, dx)
    size = tf.cast(tf.size(x) // tf.maximum(tf.size(amax), 1), tf.float32)
    # By the chain rule 1 / high; the root is the paper's scale of the step's gradient (section
    # 2.2).
    return _sum_to(slope, amax) / scale_of(amax, high) / high / tf.sqrt(size * high)


def _sum_to(value: Any, like: Any) -> Any:
    """Sum ``value`` down to the shape that ``like`` broadcast from."""
    axes, _ = tf.raw_ops.BroadcastGradientArgs(s0=tf.shape(like), s1=tf.shape(value))
    return tf.reshape(tf.reduce_sum(value, axis=axes), tf.shape(like))
