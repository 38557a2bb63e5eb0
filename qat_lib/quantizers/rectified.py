"""Fake quantization of a ReLU's output from the ReLU's input, in graphs.

The integers of ``x = relu(b)`` saturate where ReLU does, so that ``b`` gives the same values in one
pass less: ``x`` itself is computed only where something else reads it.

A training step would keep ``x`` for the gradients of ReLU and quantizer, beside the quantized
tensor that the next layer keeps. Both gradients are masks, whose product is 1 where ``0 < b <=
amax`` (and below 6 for ReLU6). Computed in the forward pass, it takes one byte an element in place
of four. The gradient to ``b`` is the same, bit for bit. None flows to ``x`` from the quantizer in a
training step: a gradient with respect to the ReLU's output itself needs an eager step or one with
``training=False``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from qat_lib.quantizers.branching import Branch, compiles_with_xla
from qat_lib.quantizers.fake_quantize import gated, masked, quantized_values

_RELUS: dict[str, Callable[[Any], Any]] = {"Relu": tf.nn.relu, "Relu6": tf.nn.relu6}
_BELOW_6 = np.nextafter(np.float32(6), np.float32(0))


@dataclass(frozen=True)
class Rectified:
    """The output of a ReLU in a graph.

    Args:
        output: the output, a float tensor of any shape.
        source: input of the ReLU, shaped as the output.
        relu: ``tf.nn.relu`` or ``tf.nn.relu6``.
    """

    output: Any
    source: Any
    relu: Callable[[Any], Any]

    def range_of(self, x: Any) -> Any:
        """Return the largest output for the input ``x``, a float32 scalar."""
        return tf.cast(self.relu(tf.reduce_max(x)), tf.float32)

    def quantize(self, amax: Any, high: float, branch: Branch) -> Any:
        """Quantize the output.

        Args:
            amax: range, a float32 scalar, at least ``AMAX_FLOOR``.
            high: greatest integer of the quantizer.
            branch: where off, values and gradients pass unchanged.

        Returns:
            A tensor with the shape and data type of ``source``. Its gradient goes to ``source`` in
            a training step, else to ``output``.
        """

        if branch.is_traced:
            return self._in_training(amax, high, branch)

        @tf.custom_gradient
        def quantize(x: Any, source: Any) -> Any:
            def grad(dy: Any) -> tuple[Any, None]:
                return branch.run(dy, lambda dy: masked(dy, x, amax, (0.0, high))), None

            return self._forward(source, amax, high, branch), grad

        return quantize(self.output, self.source)

    def _in_training(self, amax: Any, high: float, branch: Branch) -> Any:
        @tf.custom_gradient
        def quantize(source: Any) -> Any:
            passes = self._passes(tf.cast(source, tf.float32), amax, branch)
            return gated(self._forward(source, amax, high, branch), passes)

        return quantize(self.source)

    def _forward(self, source: Any, amax: Any, high: float, branch: Branch) -> Any:
        def values(source: Any) -> Any:
            if self.relu is tf.nn.relu6:
                # The integers saturate at or below 6 unless the range was set wider by hand.
                wider = Branch(amax > 6.0, training=branch.training)
                source = wider.run(source, self.relu)
            return quantized_values(source, amax, (0.0, high))

        return branch.run(source, values, self.relu)

    def _passes(self, source: Any, amax: Any, branch: Branch) -> Any:
        """Return where ReLU and quantizer both pass the gradient."""
        upper = tf.where(branch.on, amax, np.float32(np.inf))
        if self.relu is tf.nn.relu6:
            upper = tf.minimum(upper, _BELOW_6)
        return (source > 0.0) & (source <= upper)


def rectified(x: Any) -> Rectified | None:
    """Return the ReLU whose output ``x`` is.

    None outside of a graph, in functions that XLA compiles, and for other tensors.
    """
    if tf.executing_eagerly() or compiles_with_xla() or x.op.type not in _RELUS:
        return None
    return Rectified(x, x.op.inputs[0], _RELUS[x.op.type])
