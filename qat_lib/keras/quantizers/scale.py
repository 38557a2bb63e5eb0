"""Scale of a range, with the same rounding as in the exported file."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from qat_lib.core.ranges import AMAX_FLOOR, greatest_integer
from qat_lib.keras.quantizers.branching import compiles_with_xla


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
