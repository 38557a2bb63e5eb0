"""Switches of a quantizer: enabled, following the data, calibrated."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from qat_lib.errors import SpecError

ENABLED, TRACKING, CALIBRATED = 0, 1, 2


class Switches:
    """Three switches in a variable, for Keras layers to inherit.

    They are effective in compiled models too.
    """

    name: str
    built: bool
    _flags: Any

    def _add_switches(self: Any) -> None:
        # One variable for the three switches: they must reach functions that were traced before a
        # switch turned.
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
        with tf.init_scope():  # the export reads the switch while it traces a graph
            return bool(keras.ops.convert_to_numpy(self._flags)[index])

    @property
    def enabled(self) -> bool:
        """Whether the tensor is quantized; otherwise it passes bit for bit."""
        return self._is_on(ENABLED)

    def enable(self) -> None:
        """Quantize from now on."""
        self._switch(ENABLED, True)

    def disable(self) -> None:
        """Pass the tensor through unchanged from now on."""
        self._switch(ENABLED, False)

    def freeze(self) -> None:
        """Keep the range as it is from now on (``"ema"`` and ``"last"``)."""
        self._switch(TRACKING, False)

    def unfreeze(self) -> None:
        """Let the range follow the data again (``"ema"`` and ``"last"``)."""
        self._switch(TRACKING, True)

    def _check_built(self) -> None:
        if not self.built:
            raise SpecError(
                f"The quantizer {self.name!r} is not built: call it on its tensor first."
            )


def switches(flags: Any) -> list[Any]:
    """Return the three switches of the variable's value, bool scalars."""
    return list(tf.unstack(tf.cast(flags, tf.bool), num=3))


def _initial_flags(_shape: Any, dtype: Any) -> Any:
    return tf.constant([1, 1, 0], dtype)
