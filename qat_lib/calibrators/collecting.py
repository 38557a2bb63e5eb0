"""Collecting mode: the model's quantizers show their tensors to calibration.

The mode is a context variable, so that it ends with its ``with`` block, whatever happens in it, and
does not leak into other threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol


class Collector(Protocol):
    """What calibration hands to the quantizers of a model."""

    def observe(self, quantizer: Any, tensor: Any) -> Any:
        """Take note of ``tensor``, the float input of ``quantizer``.

        Returns:
            What the quantizer passes on; None for ``tensor`` itself.
        """


_collector: ContextVar[Collector | None] = ContextVar("qat_lib_collector", default=None)


@contextmanager
def collecting(collector: Collector | None) -> Iterator[None]:
    """Make quantizers show their inputs to ``collector`` and pass on what it says.

    With None they quantize, as outside of any such block.
    """
    token = _collector.set(collector)
    try:
        yield
    finally:
        _collector.reset(token)


def active_collector() -> Collector | None:
    """Return the collector of the enclosing ``collecting``, if any."""
    return _collector.get()
