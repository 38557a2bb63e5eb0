"""Context in which a global batch is split over workers, each of which sees its rows alone.

What a quantizer takes from a batch must be what one worker would take from all of it: the range
that follows the data, and the size in the gradient of a learned one.
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
    """Let quantizers act for the whole batch, within the block.

    Args:
        maximum: returns the largest of all workers' values of a tensor, element by element.
        share: rows of this worker over those of the batch, a float32 scalar above 0.
    """
    token = _split.set(_Split(maximum=maximum, share=share))
    try:
        yield
    finally:
        _split.reset(token)


def observed_by_all(seen: Any) -> Any:
    """Return the largest magnitude that any worker saw; ``seen`` where the batch is whole."""
    split = _split.get()
    return seen if split is None else split.maximum(seen)


def learned_by_all(amax: Any) -> Any:
    """Return a learned range whose gradients add up, over the workers, to the whole batch's.

    LSQ divides a gradient by the root of the number of values, of which a worker has a share.
    """
    split = _split.get()
    if split is None:
        return amax
    root = tf.sqrt(split.share)

    @tf.custom_gradient
    def scaled(value: Any) -> Any:
        return tf.identity(value), lambda dy: dy * root

    return scaled(amax)
