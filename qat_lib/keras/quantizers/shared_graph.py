"""Graph functions shared by quantizers with the same settings in training steps.

Tracing an op takes longer than running it once, and a network has hundreds of similar quantizers.
Each call of a shared function traces one op, and one more for its gradient; TensorFlow inlines the
function before the first step. Inside a function, unlike at the top level, a ``Merge`` waits only
for its inputs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from qat_lib.keras.quantizers.branching import compiles_with_xla


def shared(body: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``body`` as a function that is traced once per kind of arguments.

    Args:
        body: a function of positional tensors and hashable keyword settings. It must not use other
            tensors or variables.

    Returns:
        A function with the arguments of ``body``. In graphs, it is traced once for each combination
        of settings, data types and ranks, so its results have no static shapes. With the setting
        ``training=False``, each call traces a separate function, because the TensorFlow Lite
        converter fails on functions called twice. In eager mode and XLA, it calls ``body``
        directly.
    """

    @functools.cache
    def traced(kinds: tuple[Any, ...], settings: tuple[Any, ...]) -> Any:
        return tf.function(
            lambda *tensors: body(*tensors, **dict(settings)),
            input_signature=[
                tf.TensorSpec(None if rank is None else [None] * rank, dtype)
                for rank, dtype in kinds
            ],
            autograph=False,
        )

    @functools.wraps(body)
    def run(*tensors: Any, **settings: Any) -> Any:
        if tf.executing_eagerly() or compiles_with_xla():
            return body(*tensors, **settings)
        kinds = tuple((tensor.shape.rank, tensor.dtype) for tensor in tensors)
        # ``__wrapped__`` bypasses the cache.
        trace = traced if settings.get("training", True) else traced.__wrapped__
        return trace(kinds, tuple(settings.items()))(*tensors)

    return run
