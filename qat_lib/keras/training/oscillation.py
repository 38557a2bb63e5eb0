"""Callback to measure, and optionally freeze, oscillating weights of a Keras model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from qat_lib.core.oscillation import OscillationTracker
from qat_lib.core.ranges import integer_bounds
from qat_lib.keras.quantizers import model_quantizers


class WeightOscillation(keras.callbacks.Callback):
    """Measure the oscillation of quantized weights, and optionally freeze oscillating weights.

    Source: Nagel et al. 2022 (https://arxiv.org/abs/2203.11086); see ``qat_lib.core.oscillation``.

    Args:
        freeze_above: oscillation frequency, in (0, 1], from which a weight is frozen at its most
            frequent integer; None, the default, only measures. Use 0.01 to 0.02 for 4 bits.

    Attributes:
        shares: share of oscillating weights by quantizer, in [0, 1], after training.
        frozen_shares: share of frozen weights by quantizer, in [0, 1].

    Examples:
        >>> import qat_lib
        >>> callbacks = [qat_lib.keras.training.WeightOscillation(freeze_above=0.02)]
    """

    def __init__(self, *, freeze_above: float | None = None) -> None:
        super().__init__()
        self._tracker = OscillationTracker(freeze_above=freeze_above)
        self._weights: dict[str, tuple[Any, Any]] = {}

    @property
    def shares(self) -> Mapping[str, float]:
        """Share of oscillating weights by quantizer, in [0, 1]."""
        return self._tracker.shares()

    @property
    def frozen_shares(self) -> Mapping[str, float]:
        """Share of frozen weights by quantizer, in [0, 1]."""
        return self._tracker.frozen_shares()

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002
        """Collect the quantized weights and record their integers."""
        for name, quantizer in model_quantizers(self.model).items():
            if quantizer.of_weight and quantizer.enabled:
                self._weights[name] = (quantizer, quantizer.weight)
        self._tracker.observe(self._integers())

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        """Record the integers after a step, and reset frozen weights to theirs."""
        self._tracker.observe(self._integers())
        for name, (quantizer, variable) in self._weights.items():
            if (found := self._tracker.frozen(name)) is None:
                continue
            mask, integers = found
            # The optimizer has moved frozen weights, too, if only by momentum or weight decay.
            fixed = tf.cast(integers * quantizer.scale, variable.dtype)
            variable.assign(tf.where(mask, fixed, variable.value))

    def get_state(self) -> dict[str, Any]:
        """Return the recorded state, to resume in another process."""
        return self._tracker.get_state()

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a ``get_state`` result; call it after ``on_train_begin``."""
        self._tracker.set_state(state)

    def _integers(self) -> dict[str, np.ndarray]:
        found = {}
        for name, (quantizer, variable) in self._weights.items():
            low, high = integer_bounds(
                quantizer.num_bits, quantizer.narrow_range, quantizer.unsigned
            )
            ratio = np.asarray(variable.value, np.float32) / quantizer.scale
            found[name] = np.clip(np.rint(ratio), low, high)
        return found
