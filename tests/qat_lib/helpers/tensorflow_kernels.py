"""Layers for which TensorFlow has no kernel on every CPU."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf


def require_kernels(model: Any, *inputs: Any) -> None:
    """Skip the test where TensorFlow can't run ``model`` on this CPU.

    Some kernels, such as channels-first and dilated transposed convolutions, exist in oneDNN alone,
    which TensorFlow uses on CPUs with VNNI or AMX (``TF_ENABLE_ONEDNN_OPTS``).
    """
    try:
        model(inputs[0] if len(inputs) == 1 else list(inputs))
    except (tf.errors.UnimplementedError, tf.errors.InvalidArgumentError) as error:
        reason = str(error.message).splitlines()[0][:150]
        pytest.skip(f"TensorFlow has no such kernel on this CPU: {reason}")
