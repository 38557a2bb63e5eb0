"""What TensorFlow traced: the nodes of a graph and of the functions that it calls."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf


def nodes_of(run: Callable[..., Any], *specs: Any) -> list[Any]:
    """Trace ``run`` for ``specs``; return the nodes of its graph and of all called functions."""
    traced = tf.function(run).get_concrete_function(*specs)
    definition = traced.graph.as_graph_def()
    called = (node for function in definition.library.function for node in function.node_def)
    return [*definition.node, *called]


def ops_of(run: Callable[..., Any], *specs: Any) -> set[str]:
    """Return the types of the ops of ``nodes_of``."""
    return {node.op for node in nodes_of(run, *specs)}
