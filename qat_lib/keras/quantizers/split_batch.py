"""Context for training with a global batch split over workers.

Ranges that follow the data, and the gradient scale of learned ranges, must be the same as for a
single worker with the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import tensorflow as tf


@dataclass(frozen=True, kw_only=True)
class _Split:
    maximum: Callable[[Any], Any]
    share: Any


_split: ContextVar[_Split | None] = ContextVar("qat_lib_split_batch", default=None)


@contextmanager
def split_batch(maximum: Callable[[Any], Any], share: Any) -> Iterator[None]:
    """Make quantizers use statistics of the whole batch within the block.

    Args:
        maximum: returns the element-wise maximum of a tensor over all workers.
        share: number of rows of this worker over that of the batch, a float32 scalar above 0.
    """
    token = _split.set(_Split(maximum=maximum, share=share))
    try:
        yield
    finally:
        _split.reset(token)


def observed_by_all(seen: Any) -> Any:
    """Return the maximum of ``seen`` over all workers; ``seen`` if the batch is not split."""
    split = _split.get()
    return seen if split is None else split.maximum(seen)


def learned_by_all(amax: Any) -> Any:
    """Return a learned range with gradients that sum over workers to that of the whole batch.

    LSQ divides a gradient by the square root of the number of values, and a worker has only a share
    of the values.
    """
    split = _split.get()
    if split is None:
        return amax
    # 1 / sqrt(share * N) of a worker, times sqrt(share), is 1 / sqrt(N).
    root = tf.sqrt(split.share)

    @tf.custom_gradient
    def scaled(value: Any) -> Any:
        return tf.identity(value), lambda dy: dy * root

    return scaled(amax)
