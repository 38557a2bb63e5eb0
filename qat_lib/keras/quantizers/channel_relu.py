"""ChannelReLU: a ReLU with an upper bound per channel, the result of scaling a ReLU6."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from qat_lib.errors import SpecError


@keras.saving.register_keras_serializable(package="qat_lib")
class ChannelReLU(keras.layers.Layer):
    """Clip each channel of a tensor to ``[0, bound]``.

    Args:
        bounds: upper bound of each channel, along the last axis; positive and finite.

    Raises:
        SpecError: a bound is not a positive finite number.

    ``qat_lib.equalize`` replaces a ReLU6 with scaled channels by this layer. The quantizer after it
    saturates at or below the bounds, so the exported graph needs no clipping.
    """

    def __init__(self, bounds: Sequence[float], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.bounds = [float(bound) for bound in bounds]
        if not self.bounds or not np.all(np.isfinite(self.bounds)) or min(self.bounds) <= 0:
            raise SpecError(
                f"{self.name!r} needs a positive bound for each channel. Received: {bounds!r:.200}."
            )
        self.supports_masking = True

    def call(self, inputs: Any) -> Any:
        """Return ``min(relu(inputs), bounds)`` with the shape and data type of ``inputs``."""
        bounds = keras.ops.cast(np.asarray(self.bounds, np.float32), inputs.dtype)
        return keras.ops.minimum(keras.ops.relu(inputs), bounds)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Return ``input_shape``."""
        return input_shape

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return {**super().get_config(), "bounds": self.bounds}
