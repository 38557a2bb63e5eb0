"""Context for ONNX export: each quantizer marks its tensor.

The state is a context variable, so it ends with the ``with`` block, even after an exception, and
does not leak into other threads. The counterpart for calibration is
``qat_lib.calibrators.collecting``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import tensorflow as tf

_markers: ContextVar[dict[str, str] | None] = ContextVar("qat_lib_markers", default=None)


@contextmanager
def export_mode() -> Iterator[dict[str, str]]:
    """Make every enabled quantizer emit one marker op, for the ONNX export.

    Yields:
        Tensor name of each marker -> name of its quantizer; filled while the model is traced.
    """
    markers: dict[str, str] = {}
    token = _markers.set(markers)
    try:
        yield markers
    finally:
        _markers.reset(token)


def is_exporting() -> bool:
    """Whether the code runs inside ``export_mode``."""
    return _markers.get() is not None


def export_marker(x: Any, quantizer: str) -> Any:
    """Return ``x`` through an Identity that marks the quantizer's Q/DQ pair."""
    # TensorFlow may change the name to make it unique, so the op name alone does not identify the
    # quantizer.
    marked = tf.identity(x, name=quantizer)
    markers = _markers.get()
    if markers is not None and not tf.executing_eagerly():
        markers[marked.name] = quantizer
    return marked
