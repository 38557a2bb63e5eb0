"""The branch that a quantizer's switch takes while a model runs, without a condition to trace."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import control_flow_util  # of XLA there is no public view


@dataclass(frozen=True)
class Branch:
    """A choice between a computation on a tensor and the tensor itself.

    Args:
        on: bool scalar: whether to compute.

    In graphs it takes one op on either side of the computation: ``tf.cond`` is traced as two
    functions, its gradient as two more, and runs as about twelve ops more. XLA gets ``tf.cond``.
    """

    on: Any

    def run(self, x: Any, compute: Callable[[Any], Any], otherwise: Any = None) -> Any:
        """Return ``compute(x)`` where the switch is on, else ``otherwise``, by default ``x``.

        ``otherwise`` is a tensor or a function of ``x``. No gradient flows through the branch. A
        tensor is passed on without a copy.
        """
        if tf.executing_eagerly():
            return compute(x) if self.on else _other(otherwise, x)
        if compiles_with_xla():
            return tf.cond(self.on, lambda: compute(x), lambda: tf.identity(_other(otherwise, x)))
        idle, live = tf.raw_ops.Switch(data=x, pred=self.on)
        if callable(otherwise):
            idle = otherwise(idle)
        elif otherwise is not None:
            idle, _ = tf.raw_ops.Switch(data=otherwise, pred=self.on)
        computed = compute(live)
        merged, _ = tf.raw_ops.Merge(inputs=[idle, computed])
        merged.set_shape(computed.shape)  # tf.ensure_shape would be one more op to trace
        return merged


def in_graph() -> bool:
    """Whether a graph is traced that XLA does not compile."""
    return not tf.executing_eagerly() and not compiles_with_xla()


def compiles_with_xla() -> bool:
    """Whether the graph that is being traced is compiled by XLA, which lacks some of our ops."""
    return bool(control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()))


def _other(otherwise: Any, x: Any) -> Any:
    if callable(otherwise):
        return otherwise(x)
    return x if otherwise is None else otherwise
