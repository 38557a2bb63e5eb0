"""Retracing of a compiled training step after a change of trainable layers."""

from __future__ import annotations

from typing import Any


def retrace(model: Any) -> None:
    """Trace the training step again at the next batch.

    Keras reads ``trainable`` only while tracing.
    """
    if model.train_function is not None:
        model.make_train_function(force=True)
