"""Graph functions of quantizers, shared by those with the same settings in training steps.

Tracing an op takes longer than running it once, and a network has hundreds of quantizers that do
the same. Each call of a shared function is one op to trace, and one more for its gradient;
TensorFlow puts the function's ops in their place before the first step runs. In a function, unlike
outside, a ``Merge`` waits for nothing but its inputs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from qat_lib.keras.quantizers.branching import compiles_with_xla


def shared(body: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``body`` as a function that is traced once for each kind of arguments.

    Args:
        body: takes tensors by position and settings, which are hashable, by name. It must use no
            other tensor or variable.

    Returns:
        A function with the arguments of ``body``. In graphs it is traced once for each data type
        and rank of the tensors and each value of the settings, so that static shapes of what it
        returns are unknown. With the setting ``training=False`` each call traces a function of its
        own: TensorFlow Lite's converter doesn't convert one that is called twice. Eagerly and where
        XLA compiles it is ``body`` itself.
    """

    @functools.cache
    def traced(kinds: tuple[Any, ...], settings: tuple[Any, ...]) -> Any:
        return tf.function(
            lambda *tensors: body(*tensors, **dict(settings)),
            input_signature=[tf.TensorSpec(_of_rank(rank), dtype) for rank, dtype in kinds],
            autograph=False,
        )

    @functools.wraps(body)
    def run(*tensors: Any, **settings: Any) -> Any:
        if tf.executing_eagerly() or compiles_with_xla():
            return body(*tensors, **settings)
        kinds = tuple((tensor.shape.rank, tensor.dtype) for tensor in tensors)
        trace = traced if settings.get("training", True) else traced.__wrapped__
        return trace(kinds, tuple(settings.items()))(*tensors)

    return run


def _of_rank(rank: int | None) -> list[None] | None:
    return None if rank is None else [None] * rank
