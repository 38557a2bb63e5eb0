"""Moving average of the weights of a model over training steps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from qat_lib.core.moving_average import check_decay, decay_at


class WeightAverage(keras.callbacks.Callback):
    """Average the trainable weights over the steps, and assign the average after training.

    This is the exponential moving average of Polyak and Juditsky 1992, with a lower decay in the
    first steps. Unlike the average of Keras optimizers, it supports freezing layers during
    training, as in ``FreezeBatchNorm``. It excludes BatchNormalization statistics, which are
    averages already.

    Args:
        decay: weight of the past, in [0, 1). Default 0.99, which averages about 100 steps.

    Raises:
        SpecError: ``decay`` is out of range.

    Examples:
        >>> import qat_lib
        >>> callbacks = [qat_lib.keras.training.WeightAverage(0.99)]
    """

    def __init__(self, decay: float = 0.99) -> None:
        super().__init__()
        check_decay(decay)
        self.decay = decay
        self._steps = 0
        self._weights: list[Any] = []
        self._averages: list[Any] = []
        self._follow: Any = None

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002
        """Initialize the averages with the current weights."""
        self._steps = 0
        self._weights = list(self.model.trainable_variables)
        self._averages = [tf.Variable(v.value) for v in self._weights]
        # A new function for each ``fit``: the trace contains the variables.
        self._follow = tf.function(self._update, autograph=False)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        """Update the averages after a step."""
        self._steps += 1
        # As a tensor: a Python number would trace the function again whenever the decay changes.
        self._follow(tf.constant(decay_at(self.decay, self._steps), tf.float32))

    def on_train_end(self, logs: Any = None) -> None:  # noqa: ARG002
        """Set the weights to their averages."""
        for weight, average in zip(self._weights, self._averages, strict=True):
            weight.assign(average)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Set the weights to their averages within the block."""
        before = [v.numpy() for v in self._weights]
        self.on_train_end()
        try:
            yield
        finally:
            for weight, value in zip(self._weights, before, strict=True):
                weight.assign(value)

    def get_state(self) -> dict[str, Any]:
        """Return the averages and the number of steps, to resume in another process."""
        return {"steps": self._steps, "averages": [each.numpy() for each in self._averages]}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a ``get_state`` result; call it after ``on_train_begin``."""
        self._steps = state["steps"]
        for average, value in zip(self._averages, state["averages"], strict=True):
            average.assign(value)

    def _update(self, decay: Any) -> None:
        for weight, average in zip(self._weights, self._averages, strict=True):
            kept = tf.cast(decay, average.dtype)
            average.assign(kept * average + (1 - kept) * tf.cast(weight.value, average.dtype))
