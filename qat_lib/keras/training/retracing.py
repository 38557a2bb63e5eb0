"""A compiled model's training step, traced anew after a change of what trains."""

from __future__ import annotations

from typing import Any


def retrace(model: Any) -> None:
    """Let the next batch trace the training step again.

    Keras reads ``trainable`` while it traces, and not again.
    """
    if model.train_function is not None:
        model.make_train_function(force=True)
