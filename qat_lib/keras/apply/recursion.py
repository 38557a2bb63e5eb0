"""Recursion limit for deep graphs: Keras recurses by one call or more per layer."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

ROOM = 8_000
"""Recursion limit: six times the depth of the deepest network of keras.applications."""


@contextmanager
def deep_graphs() -> Iterator[None]:
    """Raise Python's recursion limit within the block.

    EfficientNetV2L with quantizers has more than 1,000 layers, Python's default limit. Calls
    between Python functions, as in this case, don't use the C stack.
    """
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, ROOM))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)
