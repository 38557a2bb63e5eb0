"""Raise the recursion limit so that Keras can walk deep graphs.

It recurses by one call and more for each layer.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

ROOM = 8_000
"""Calls that Python may nest: six times what the deepest network of keras.applications needs."""


@contextmanager
def deep_graphs() -> Iterator[None]:
    """Let Python nest more calls while the block runs.

    EfficientNetV2L with quantizers is more than 1,000 layers deep: Python's usual limit. Calls from
    Python code to Python code, as these are, take no room on the C stack.
    """
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, ROOM))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)
