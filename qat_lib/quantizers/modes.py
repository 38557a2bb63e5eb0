"""The two contexts in which a quantizer does something else than quantize: export and calibration.

Both are context variables, so that they end with their ``with`` block, whatever happens in it, and
do not leak into other threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

import tensorflow as tf


class Collector(Protocol):
    """What calibration hands to the quantizers of a model."""

    def observe(self, quantizer: Any, tensor: Any) -> None:
        """Take note of ``tensor``, the float input of ``quantizer``."""


_markers: ContextVar[dict[str, str] | None] = ContextVar("qat_lib_markers", default=None)
_collector: ContextVar[Collector | None] = ContextVar("qat_lib_collector", default=None)


@contextmanager
def export_mode() -> Iterator[dict[str, str]]:
    """Make every enabled quantizer emit one marker op, for the ONNX export.

    Yields:
        The name of each marker's tensor -> name of its quantizer; it fills while the model is
        traced.
    """
    markers: dict[str, str] = {}
    token = _markers.set(markers)
    try:
        yield markers
    finally:
        _markers.reset(token)


@contextmanager
def collecting(collector: Collector) -> Iterator[None]:
    """Make every quantizer show its input to ``collector`` and pass it on unchanged."""
    token = _collector.set(collector)
    try:
        yield
    finally:
        _collector.reset(token)


def is_exporting() -> bool:
    """Whether the code runs inside ``export_mode``."""
    return _markers.get() is not None


def active_collector() -> Collector | None:
    """Return the collector of the enclosing ``collecting``, if any."""
    return _collector.get()


def export_marker(x: Any, quantizer: str) -> Any:
    """Return ``x`` through an Identity that is noted as the quantizer's, for its Q/DQ pair."""
    marked = tf.identity(x, name=quantizer)
    markers = _markers.get()
    if markers is not None and not tf.executing_eagerly():
        markers[marked.name] = quantizer
    return marked
