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

MARKER = "qdq__"
"""Prefix of the name of the marker op that a quantizer emits in export mode; its own name
follows."""


class Collector(Protocol):
    """What calibration hands to the quantizers of a model."""

    def observe(self, quantizer: Any, tensor: Any) -> None:
        """Take note of ``tensor``, the float input of ``quantizer``."""


_exporting: ContextVar[bool] = ContextVar("qat_lib_exporting", default=False)
_collector: ContextVar[Collector | None] = ContextVar("qat_lib_collector", default=None)


@contextmanager
def export_mode() -> Iterator[None]:
    """Make every enabled quantizer emit one marker op that carries its name, for the ONNX export."""
    token = _exporting.set(True)
    try:
        yield
    finally:
        _exporting.reset(token)


@contextmanager
def collecting(collector: Collector) -> Iterator[None]:
    """Make every quantizer show its input to ``collector`` and pass it on unchanged."""
    token = _collector.set(collector)
    try:
        yield
    finally:
        _collector.reset(token)


def is_exporting() -> bool:
    """Whether the code runs inside :func:`export_mode`."""
    return _exporting.get()


def active_collector() -> Collector | None:
    """Return the collector of the enclosing :func:`collecting`, if any."""
    return _collector.get()


def export_marker(x: Any, name: str) -> Any:
    """Return ``x`` through an Identity named after a quantizer, of which the export makes its Q/DQ pair."""
    return tf.identity(x, name=MARKER + name)
