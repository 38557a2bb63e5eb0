"""Collecting mode: the model's quantizers pass their tensors to calibration.

A context variable stores the mode, so that it ends with its ``with`` block even after an error, and
does not affect other threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol


class Collector(Protocol):
    """Receiver of the float inputs of a model's quantizers."""

    def observe(self, quantizer: Any, tensor: Any) -> Any:
        """Record ``tensor``, the float input of ``quantizer``.

        Returns:
            The output of the quantizer; None for ``tensor`` itself.
        """


_collector: ContextVar[Collector | None] = ContextVar("qat_lib_collector", default=None)


@contextmanager
def collecting(collector: Collector | None) -> Iterator[None]:
    """Pass the inputs of quantizers to ``collector`` and return its results as their outputs.

    With None, quantizers quantize as outside of such a block.
    """
    # The token restores an enclosing collector: blocks nest.
    token = _collector.set(collector)
    try:
        yield
    finally:
        _collector.reset(token)


def active_collector() -> Collector | None:
    """Return the collector of the enclosing ``collecting``, if any."""
    return _collector.get()
