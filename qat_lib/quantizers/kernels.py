"""The loops of fake quantization, compiled by XLA so that each reads its tensors once.

As TensorFlow ops, quantization takes five passes over memory and its gradient another five;
compiled, each takes one, the cost of a ReLU, with the same numbers to the last bit. Ranges are at
least ``AMAX_FLOOR`` when they come here.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from qat_lib.ranges import AMAX_FLOOR

_COMPILED_DTYPES = ("float16", "bfloat16", "float32")
_LEAST_SIZE = 2**15
_USUAL_BATCH = 16


def integers(low: float, high: float) -> Any:
    """Return the bounds as the kernels take them: ``[low, high, low / high]``.

    They are an argument, not constants of the kernels: XLA turns a division by a constant into a
    product, which rounds otherwise.
    """
    return tf.constant([low, high, low / high], tf.float32)


def quantize_values(x: Any, amax: Any, on: Any, bounds: Any) -> Any:
    """Return the multiples of the scale nearest to ``x``, or ``x`` itself unless ``on``."""
    scale = amax / bounds[1]
    q = _round(tf.cast(x, tf.float32) / scale, bounds) * scale
    return tf.where(on, tf.cast(q, x.dtype), x)


def quantize_channels(x: Any, axes: tuple[int, ...], on: Any, bounds: Any) -> tuple[Any, Any]:
    """Quantize to the largest magnitudes over ``axes``; return also those."""
    amax = tf.reduce_max(tf.abs(tf.cast(x, tf.float32)), axis=axes, keepdims=True)
    amax = tf.maximum(amax, AMAX_FLOOR)
    return quantize_values(x, amax, on, bounds), amax


def pass_inside(x: Any, amax: Any, on: Any, bounds: Any, dy: Any) -> Any:
    """Return ``dy`` where the integers reach ``x``, else 0; all of it unless ``on``."""
    return tf.where(_inside(x, amax, bounds) | ~on, dy, tf.zeros_like(dy))


def learn(x: Any, amax: Any, on: Any, bounds: Any, dy: Any) -> tuple[Any, Any]:
    """Return the gradients to ``x`` and, for each element, to the scale.

    The latter is ``q - x / scale`` inside of the range and ``q`` outside (LSQ, equation 3).
    """
    ratio = tf.cast(x, tf.float32) / (amax / bounds[1])
    q = _round(ratio, bounds)
    inside = _inside(x, amax, bounds)
    dscale = tf.where(inside, q - ratio, q) * tf.cast(dy, tf.float32)
    dx = tf.where(inside | ~on, dy, tf.zeros_like(dy))
    return dx, tf.where(on, dscale, tf.zeros_like(dscale))


def _round(ratio: Any, bounds: Any) -> Any:
    return tf.clip_by_value(tf.round(ratio), bounds[0], bounds[1])


def _inside(x: Any, amax: Any, bounds: Any) -> Any:
    wide = tf.cast(x, tf.float32)
    return (wide >= bounds[2] * amax) & (wide <= amax)


def run_kernel(kernel: Callable[..., Any], x: Any, *arguments: Any) -> Any:
    """Run a kernel on ``x``, compiled where that pays."""
    if x.dtype.name in _COMPILED_DTYPES and _pays(x.shape) and _xla_works():
        return _compiled(kernel)(x, *arguments)
    return kernel(x, *arguments)


def _pays(shape: tf.TensorShape) -> bool:
    """Return whether a tensor is large enough to compile for, which takes about 0.1 s.

    Tensors of unknown size are not compiled for: each new size would be compiled anew. A batch of
    unknown size counts as one of ``_USUAL_BATCH``.
    """
    if shape.rank is None or not shape.rank:
        return False
    batch, *sizes = shape.as_list()
    if None in sizes:
        return False
    return bool(math.prod(sizes) * (batch or _USUAL_BATCH) >= _LEAST_SIZE)


@functools.cache
def _compiled(kernel: Callable[..., Any]) -> Any:
    return tf.function(kernel, jit_compile=True, autograph=False)


@functools.cache
def _xla_works() -> bool:
    """Return whether XLA can compile for this machine's processor."""
    try:
        with tf.init_scope():
            one, on = tf.constant([1.0]), tf.constant(True)
            value = _compiled(pass_inside)(one, tf.constant(1.0), on, integers(-2.0, 1.0), one)
            return bool(value.numpy()[0] == 1.0)
    except (tf.errors.OpError, RuntimeError):
        return False
