"""The two contexts in which a quantizer does something else than quantize: export and calibration.

Both are context variables, so that they end with their ``with`` block, whatever happens in it, and do not
leak into other threads.
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
    """Return ``x`` through an op that carries a quantizer's name into the graph; the export writes the true scales."""
    y = tf.raw_ops.QuantizeAndDequantizeV3(
        input=tf.cast(x, tf.float32),
        input_min=-127.0,
        input_max=127.0,
        num_bits=8,
        signed_input=True,
        range_given=True,
        narrow_range=False,
        axis=-1,
        name=f"qdq__{name}",
    )
    return tf.cast(y, x.dtype)
