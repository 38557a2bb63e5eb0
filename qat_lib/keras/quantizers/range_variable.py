"""Range variable of a quantizer: amax, the largest magnitude, or the step of a learned range."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from qat_lib.core.ranges import (
    AMAX_FLOOR,
    INITIAL_AMAX,
    checked_range,
    greatest_integer,
    least_step,
    range_shape,
    reduced_axes,
)
from qat_lib.keras.quantizers.large_weights import reduce_channels
from qat_lib.keras.quantizers.switches import CALIBRATED, Switches


class RangeVariable(Switches, keras.layers.Layer):
    """Base of layers with a range, either for the tensors passed to it or for one weight."""

    num_bits: int
    unsigned: bool
    channel_axes: tuple[int, ...] | None
    range_policy: str
    pair_axis: int | None
    _range: Any
    _weight_ref: Any

    def _add_range(self, input_shape: Any) -> None:
        # LSQ trains the step. Adam-like updates have about the size of the learning rate, which
        # would hardly change amax, since it is 127 times as large.
        self._range = self.add_weight(
            name="step" if self._learned else "amax",
            shape=range_shape(input_shape, self.channel_axes, self.name),
            initializer=self._initial_range,
            trainable=self._learned,
            # Below the floor, a learned range would get no gradient and could not recover.
            constraint=_StepFloor(self._unit) if self._learned else None,
            dtype="float32",
            aggregation="mean",
        )

    def _initial_range(self, shape: Any, dtype: Any) -> Any:
        weight = None if self.range_policy == "current" else self._weight()
        amax = (
            tf.fill(shape, INITIAL_AMAX)
            if weight is None
            else self.range_of(tf.convert_to_tensor(weight))
        )
        return tf.cast(tf.maximum(amax, AMAX_FLOOR), dtype) / self._unit

    @property
    def _learned(self) -> bool:
        return self.range_policy == "learned"

    @property
    def _high(self) -> float:
        return greatest_integer(self.num_bits, self.unsigned)

    @property
    def _unit(self) -> float:
        """Amax per unit of the variable: the greatest integer for a learned step, else 1."""
        return self._high if self._learned else 1.0

    def range_of(self, x: Any) -> Any:
        """Return the largest magnitude of ``x``, or of each channel; other axes have size 1.

        With a ``pair_axis``, return the largest sum of a pair instead.
        """
        if self.pair_axis is not None:
            return largest_pair(x, self.channel_axes, self.pair_axis)
        return largest_magnitude(x, self.channel_axes, self.unsigned)

    def magnitude(self, x: Any) -> Any:
        """Return float32 magnitudes, with negative values as 0 if unsigned."""
        x = tf.cast(x, tf.float32)
        return tf.nn.relu(x) if self.unsigned else tf.abs(x)

    def bind_weight(self, variable: Any) -> None:
        """Set the weight, to initialize the range from it; ``"current"`` follows it afterwards."""
        # A weak reference: Keras would track a variable attribute as a weight of this layer.
        self._weight_ref = weakref.ref(variable)

    def _weight(self) -> Any:
        return None if self._weight_ref is None else self._weight_ref()

    @property
    def weight(self) -> Any:
        """The quantized weight, a ``keras.Variable``; None for activations."""
        return self._weight()

    @property
    def of_weight(self) -> bool:
        """Whether the quantizer has a weight; its range needs no data."""
        return self._weight() is not None

    def fit_weight(self) -> None:
        """Set the range from the current values of the weight.

        The policy ``"current"`` always uses them, so nothing changes.
        """
        if self.range_policy != "current":
            self.amax = self.range_of(tf.convert_to_tensor(self._weight())).numpy()

    @property
    def amax(self) -> np.ndarray:
        """The range, a float32 scalar or one value per channel in broadcastable shape.

        It is at least ``AMAX_FLOOR``. Assigning a range marks the quantizer as calibrated.
        """
        if self.range_policy == "current" and (weight := self._weight()) is not None:
            value = self.range_of(tf.convert_to_tensor(weight)).numpy()
        else:
            self._check_built()
            # In float32, as the graph computes it: the export must get the same bits.
            value = keras.ops.convert_to_numpy(self._range) * np.float32(self._unit)
        return np.maximum(np.asarray(value, np.float32), np.float32(AMAX_FLOOR))

    @amax.setter
    def amax(self, value: Any) -> None:
        self._check_built()
        self._assign_amax(checked_range(self.name, value, tuple(self._range.shape)))
        self._switch(CALIBRATED, True)

    def _assign_amax(self, array: np.ndarray) -> None:
        # Rounding of ``step * unit`` must not give a range below the floor.
        least = least_step(self._high) if self._learned else np.float32(AMAX_FLOOR)
        self._range.assign(np.maximum(array / np.float32(self._unit), least))

    @property
    def scale(self) -> np.ndarray:
        """The float32 scale: ``amax`` over the greatest integer."""
        return self.amax / np.float32(self._high)

    def take_over(self, other: RangeVariable) -> None:
        """Copy the range and switches of another quantizer, also of another policy."""
        # With equal units, the variables are copied: a detour over amax could round.
        if other._unit == self._unit:
            self._range.assign(other._range.value)
        else:
            self._assign_amax(other.amax)
        self._flags.assign(other._flags.value)

    def save_own_variables(self, store: Any) -> None:
        """Save the range as amax; also save the exact step of a learned range."""
        # Keras's keys "0" and "1", so that a quantizer of another policy can load the file.
        if not self._learned:
            super().save_own_variables(store)
            return
        store["0"], store["1"] = self.amax, self._flags
        store["step"] = self._range

    def load_own_variables(self, store: Any) -> None:
        """Load a saved range, also from another policy or without a step."""
        if not self._learned and "step" not in store:
            super().load_own_variables(store)
            return
        if self._learned and "step" in store:
            self._range.assign(store["step"])
        else:
            self._assign_amax(np.asarray(store["0"]))
        self._flags.assign(store["1"])


def largest_magnitude(x: Any, channel_axes: tuple[int, ...] | None, unsigned: bool) -> Any:
    """Return the float32 largest magnitude of ``x``, or of each channel along ``channel_axes``.

    Negative values count as 0 if ``unsigned``; the other axes have size 1.
    """

    def reduced(reduce: Callable[..., Any]) -> Any:
        if channel_axes is None:
            return tf.cast(reduce(x), tf.float32)
        axes = reduced_axes(len(x.shape), channel_axes)
        return tf.cast(reduce_channels(reduce, x, axes), tf.float32)

    # Two reductions take half the time of computing all magnitudes and reducing them.
    most = reduced(tf.reduce_max)
    return tf.nn.relu(most) if unsigned else tf.maximum(most, -reduced(tf.reduce_min))


def largest_pair(x: Any, channel_axes: tuple[int, ...] | None, axis: int) -> Any:
    """Return the float32 largest magnitude of a sum over neighbours with the same sign.

    Neighbours are the elements 0 and 1, 2 and 3, ... along ``axis``; the last element may be
    unpaired. The result is at least ``largest_magnitude``.
    """
    axis %= len(x.shape)
    # Shared graph functions are traced without static sizes.
    sizes = tf.unstack(tf.shape(x), num=len(x.shape))
    paddings = [(0, 0)] * len(x.shape)
    paddings[axis] = (0, sizes[axis] % 2)
    shape = [*sizes[:axis], -1, 2, *sizes[axis + 1 :]]
    pairs = tf.reshape(tf.pad(tf.cast(x, tf.float32), paddings), shape)
    # The sum of two weights with opposite signs is smaller than the larger one: ignore it.
    sums = [tf.reduce_sum(tf.nn.relu(sign * pairs), axis + 1) for sign in (1.0, -1.0)]
    return largest_magnitude(tf.maximum(*sums), channel_axes, unsigned=False)


class _StepFloor(keras.constraints.Constraint):
    """Constraint that keeps a learned step at or above its minimum; ``high`` steps per range."""

    def __init__(self, high: float) -> None:
        self.least = least_step(high)

    def __call__(self, w: Any) -> Any:
        return keras.ops.maximum(w, self.least)
