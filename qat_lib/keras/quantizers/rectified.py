"""Fake quantization of a ReLU output, computed from the ReLU input in graphs.

The unsigned integers of ``x = relu(b)`` saturate at zero like ReLU, so quantizing ``b`` gives the
same values and saves a pass over memory: ``x`` is computed only for other readers.

A training step would store ``x`` for the gradients of ReLU and quantizer, in addition to the
quantized tensor stored for the next layer. Both gradients are masks with the product 1 for
``0 < b <= amax`` (and below 6 for ReLU6). Computing the product in the forward pass stores one byte
per element instead of four. A learned range needs ``b`` for its gradient, and both masks follow
from it. The gradient to ``b`` is bit-identical. In a training step, no gradient flows from the
quantizer to ``x``: to get the gradient of the ReLU output, use an eager step or ``training=False``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from qat_lib.core.ranges import AMAX_FLOOR
from qat_lib.keras.quantizers.branching import Branch, compiles_with_xla
from qat_lib.keras.quantizers.fake_quantize import (
    gated,
    masked,
    passed_between,
    quantized_values,
    range_gradient,
)
from qat_lib.keras.quantizers.shared_graph import shared
from qat_lib.keras.quantizers.switches import ENABLED, switches

Relu = Callable[[Any], Any]
"""``tf.nn.relu`` or ``tf.nn.relu6``."""

_RELUS: dict[str, Relu] = {"Relu": tf.nn.relu, "Relu6": tf.nn.relu6}
_BACKWARD = {tf.nn.relu: tf.raw_ops.ReluGrad, tf.nn.relu6: tf.raw_ops.Relu6Grad}
_BELOW_6 = np.nextafter(np.float32(6), np.float32(0))
_ABOVE_0 = np.finfo(np.float32).tiny


@dataclass(frozen=True)
class Rectified:
    """The output of a ReLU in a graph.

    Args:
        output: the output, a float tensor of any shape.
        source: input of the ReLU, with the shape of the output.
        relu: the function, ReLU or ReLU6.
    """

    output: Any
    source: Any
    relu: Relu

    def quantize(self, range_: Any, flags: Any, high: float, training: bool) -> Any:
        """Quantize the output.

        Args:
            range_: range, a float32 scalar.
            flags: switches of the quantizer; if disabled, values and gradients pass unchanged.
            high: greatest integer of the quantizer.
            training: whether a training step is being traced.

        Returns:
            A tensor with the data type of ``source``. Its gradient flows to ``source`` in a
            training step, else to ``output``.
        """
        if training:
            return _in_training(self.source, range_, flags, relu=self.relu, high=high)
        return _in_inference(
            self.output, self.source, range_, flags, relu=self.relu, high=high, training=False
        )

    def quantize_learned(self, step: Any, flags: Any, high: float) -> Any:
        """Quantize the output in a training step, with a gradient to the learned range.

        Args:
            step: learned step, the range over ``high``; a float32 scalar.
            flags: as for ``quantize``.
            high: greatest integer of the quantizer.
        """
        return _learned(self.source, step, flags, relu=self.relu, high=high)


@shared
def _in_training(source: Any, range_: Any, flags: Any, *, relu: Relu, high: float) -> Any:
    amax = tf.maximum(range_, AMAX_FLOOR)
    branch = Branch(switches(flags)[ENABLED])

    @tf.custom_gradient
    def quantize(source: Any) -> Any:
        passes = _passes(tf.cast(source, tf.float32), amax, relu, branch)
        return gated(_values(source, amax, relu, high, branch), passes)

    return quantize(source)


@shared
def _learned(source: Any, step: Any, flags: Any, *, relu: Relu, high: float) -> Any:
    amax = tf.maximum(step * high, AMAX_FLOOR)
    branch = Branch(switches(flags)[ENABLED])
    # A learned range may grow beyond 6; then ReLU6 saturates before the integers do.
    wide, limited = Branch(amax >= 6.0), relu is tf.nn.relu6
    backward, bounds = _BACKWARD[relu], (0.0, high)

    @tf.custom_gradient
    def quantize(source: Any, amax: Any) -> Any:
        x = wide.run(source, relu) if limited else source
        y = branch.run(x, lambda x: quantized_values(x, amax, bounds), relu)

        def grad(dy: Any) -> tuple[Any, Any]:
            inside = branch.run(
                dy,
                # From the smallest positive number: ReLU's gradient is 0 at 0, the mask is closed.
                lambda dy: passed_between(dy, x, _ABOVE_0, amax),
                lambda dy: backward(gradients=dy, features=source),
            )
            damax = range_gradient(dy, inside, x, y, amax, bounds, branch)
            if limited:
                return wide.run(inside, lambda dy: backward(gradients=dy, features=x)), damax
            return inside, damax

        return y, grad

    return quantize(source, amax)


@shared
def _in_inference(
    output: Any,
    source: Any,
    range_: Any,
    flags: Any,
    *,
    relu: Relu,
    high: float,
    training: bool,  # noqa: ARG001  a setting of ``shared``
) -> Any:
    amax = tf.maximum(range_, AMAX_FLOOR)
    branch = Branch(switches(flags)[ENABLED])

    @tf.custom_gradient
    def quantize(output: Any, source: Any) -> Any:
        def grad(dy: Any) -> tuple[Any, None]:
            return branch.run(dy, lambda dy: masked(dy, output, amax, (0.0, high))), None

        return _values(source, amax, relu, high, branch), grad

    return quantize(output, source)


def _values(source: Any, amax: Any, relu: Relu, high: float, branch: Branch) -> Any:
    def values(source: Any) -> Any:
        if relu is tf.nn.relu6:
            # The integers saturate at or below 6, except for a wider range set by the user.
            source = Branch(amax > 6.0).run(source, relu)
        return quantized_values(source, amax, (0.0, high))

    return branch.run(source, values, relu)


def _passes(source: Any, amax: Any, relu: Relu, branch: Branch) -> Any:
    """Return the mask of values with a gradient through both ReLU and quantizer."""
    upper = tf.where(branch.on, amax, np.float32(np.inf))
    if relu is tf.nn.relu6:
        upper = tf.minimum(upper, _BELOW_6)  # the gradient of ReLU6 is 0 at 6
    return (source > 0.0) & (source <= upper)


def rectified(x: Any) -> Rectified | None:
    """Return the ReLU that computes ``x``, or None.

    The result is None in eager mode, in functions compiled by XLA, and for other tensors.
    """
    if tf.executing_eagerly() or compiles_with_xla() or x.op.type not in _RELUS:
        return None
    return Rectified(x, x.op.inputs[0], _RELUS[x.op.type])
