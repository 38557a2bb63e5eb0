"""Branch on a quantizer switch at run time, without tracing ``tf.cond``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import control_flow_util  # no public API detects XLA contexts


@dataclass(frozen=True)
class Branch:
    """Choice between a computation on a tensor and the tensor itself.

    Args:
        on: bool scalar, whether to compute.

    In graphs, a branch adds one op before and one after the computation. ``tf.cond`` would trace
    two functions, and two more for the gradient, and add about twelve ops. XLA requires
    ``tf.cond``.
    """

    on: Any

    def run(self, x: Any, compute: Callable[[Any], Any], otherwise: Any = None) -> Any:
        """Return ``compute(x)`` if the switch is on, else ``otherwise``, by default ``x``.

        ``otherwise`` is a tensor or a function of ``x``. No gradient flows through the branch. The
        idle tensor is not copied.
        """
        if tf.executing_eagerly():
            return compute(x) if self.on else _other(otherwise, x)
        if compiles_with_xla():
            return tf.cond(self.on, lambda: compute(x), lambda: tf.identity(_other(otherwise, x)))
        # Ops behind the dead output of a Switch don't run; Merge forwards the live input.
        idle, live = tf.raw_ops.Switch(data=x, pred=self.on)
        if callable(otherwise):
            idle = otherwise(idle)
        elif otherwise is not None:
            idle, _ = tf.raw_ops.Switch(data=otherwise, pred=self.on)
        computed = compute(live)
        merged, _ = tf.raw_ops.Merge(inputs=[idle, computed])
        merged.set_shape(computed.shape)  # tf.ensure_shape would add an op
        return merged


def in_graph() -> bool:
    """Whether a graph without XLA compilation is being traced."""
    return not tf.executing_eagerly() and not compiles_with_xla()


def compiles_with_xla() -> bool:
    """Whether the graph being traced is compiled by XLA, which does not support all of our ops."""
    return bool(control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()))


def _other(otherwise: Any, x: Any) -> Any:
    if callable(otherwise):
        return otherwise(x)
    return x if otherwise is None else otherwise
