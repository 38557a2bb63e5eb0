"""Switches of a quantizer: enabled, tracking the data, calibrated."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from qat_lib.errors import SpecError

ENABLED, TRACKING, CALIBRATED = 0, 1, 2


class Switches:
    """Mixin for Keras layers with three switches in a variable, effective in compiled models."""

    name: str
    built: bool
    _flags: Any

    def _add_switches(self: Any) -> None:
        # One variable for all switches, so that functions traced earlier see later changes.
        self._flags = self.add_weight(
            name="flags",
            shape=(3,),
            initializer=_initial_flags,
            trainable=False,
            dtype="int32",
            aggregation="only_first_replica",
        )

    def _switch(self, index: int, on: bool) -> None:
        self._check_built()
        flags = np.array(keras.ops.convert_to_numpy(self._flags))
        flags[index] = int(on)
        self._flags.assign(flags)

    def _is_on(self, index: int) -> bool:
        self._check_built()
        with tf.init_scope():  # the export reads the switch while tracing a graph
            return bool(keras.ops.convert_to_numpy(self._flags)[index])

    @property
    def enabled(self) -> bool:
        """Whether the tensor is quantized; otherwise it passes unchanged."""
        return self._is_on(ENABLED)

    def enable(self) -> None:
        """Enable quantization."""
        self._switch(ENABLED, True)

    def disable(self) -> None:
        """Disable quantization: tensors pass unchanged."""
        self._switch(ENABLED, False)

    def freeze(self) -> None:
        """Stop range tracking (``"ema"`` and ``"last"``)."""
        self._switch(TRACKING, False)

    def unfreeze(self) -> None:
        """Resume range tracking (``"ema"`` and ``"last"``)."""
        self._switch(TRACKING, True)

    def _check_built(self) -> None:
        if not self.built:
            raise SpecError(
                f"The quantizer {self.name!r} is not built: call it on its tensor first."
            )


def switches(flags: Any) -> list[Any]:
    """Return the three switches of a variable value as bool scalars."""
    return list(tf.unstack(tf.cast(flags, tf.bool), num=3))


def _initial_flags(_shape: Any, dtype: Any) -> Any:
    return tf.constant([1, 1, 0], dtype)
