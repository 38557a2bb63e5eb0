"""TensorQuantizer: the layer that owns the range of one tensor, or of one tied group of tensors."""

from __future__ import annotations

import weakref
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from qat_lib.errors import SpecError
from qat_lib.quantizers.fake_quantize import AMAX_FLOOR, fake_quantize, integer_bounds
from qat_lib.quantizers.modes import active_collector, is_exporting

RANGE_POLICIES = ("frozen", "ema", "last", "learned", "current")
INITIAL_AMAX = 6.0
_ENABLED, _TRACKING, _CALIBRATED = 0, 1, 2
SHARED_FALL = 32.0
"""How many times slower the range of several tensors falls than it rises, so that it covers the widest of them."""


@keras.saving.register_keras_serializable(package="qat_lib")
class TensorQuantizer(keras.layers.Layer):
    """Fake-quantize a tensor and own its range.

    Args:
        num_bits: width of the integers, 2 to 16. Default 8.
        narrow_range: whether to leave out the least integer. Default False; weights use True.
        unsigned: whether the integers are unsigned: 255 steps over ``[0, amax]`` in place of 127, for a tensor that is
            never negative (what is below zero becomes zero). Default False. OpenVINO and ONNX Runtime run both kinds,
            TensorRT signed ones only.
        channel_axes: axes that keep a range of their own, such as ``(-1,)`` for a convolution's kernel; None, the
            default, gives the whole tensor one range. Activations have one range.
        range_policy: what happens to the range while the model trains:
            ``"frozen"`` it stays; ``"ema"`` (default) it follows an exponential moving average of the batch's
            largest magnitude; ``"last"`` it is the last batch's; ``"learned"`` it is trained (LSQ);
            ``"current"`` it is always that of the tensor itself, in inference too (weights).
        momentum: weight of the old range in ``"ema"``, in [0, 1). Default 0.95.
        calibrator: name of the method that ``calibrate`` uses for this tensor; None = the one given to ``calibrate``.

    A quantizer that is called on several tensors gives them one range, wide enough for the widest.

    The range starts at 6 until ``calibrate`` or the first training step sets it. ``enable()``, ``disable()`` and
    ``freeze()`` take effect at once, in compiled and traced models too.

    Example:
        >>> import keras, qat_lib
        >>> x = keras.Input((4,))
        >>> model = keras.Model(x, qat_lib.TensorQuantizer(name="x_quantizer")(x))
    """

    def __init__(
        self,
        *,
        num_bits: int = 8,
        narrow_range: bool = False,
        unsigned: bool = False,
        channel_axes: tuple[int, ...] | list[int] | None = None,
        range_policy: str = "ema",
        momentum: float = 0.95,
        calibrator: str | None = None,
        **kwargs: Any,
    ) -> None:
        if range_policy not in RANGE_POLICIES:
            raise SpecError(f"range_policy must be one of {', '.join(RANGE_POLICIES)}. Received: {range_policy!r}.")
        if isinstance(num_bits, bool) or not isinstance(num_bits, int) or not 2 <= num_bits <= 16:
            raise SpecError(f"num_bits must be an integer from 2 to 16. Received: {num_bits!r}.")
        if narrow_range and unsigned:
            raise SpecError(
                "unsigned integers have no narrow range: give narrow_range=True or unsigned=True, not both."
            )
        if not 0 <= momentum < 1:
            raise SpecError(f"momentum must be in [0, 1). Received: {momentum!r}.")
        kwargs.setdefault("dtype", "float32")
        super().__init__(autocast=False, **kwargs)
        self.num_bits = num_bits
        self.narrow_range = narrow_range
        self.unsigned = unsigned
        self.channel_axes = None if channel_axes is None else tuple(channel_axes)
        self.range_policy = range_policy
        self.momentum = momentum
        self.calibrator = calibrator
        self.supports_masking = True
        self._weight_ref: Any = None

    def build(self, input_shape: Any) -> None:
        """Create the range and the switches; the range keeps one value for each kept axis, 1 elsewhere."""
        self._amax = self.add_weight(
            name="amax",
            shape=self._range_shape(input_shape),
            initializer=keras.initializers.Constant(INITIAL_AMAX),
            trainable=self.range_policy == "learned",
            # Below the floor a learned range would get no gradient, and stay there.
            constraint=_not_below_the_floor if self.range_policy == "learned" else None,
            dtype="float32",
            aggregation="mean",
        )
        # One variable for the three switches: they must reach functions that were traced before a switch turned.
        self._flags = self.add_weight(
            name="flags",
            shape=(3,),
            initializer=_initial_flags,
            trainable=False,
            dtype="int32",
            aggregation="only_first_replica",
        )
        self.built = True

    def _range_shape(self, input_shape: Any) -> tuple[int, ...]:
        if self.channel_axes is None:
            return ()
        rank = len(input_shape)
        if beyond := [axis for axis in self.channel_axes if not -rank <= axis < rank]:
            raise SpecError(f"{self.name!r} keeps a range along axis {beyond[0]}, but its tensor has rank {rank}.")
        kept = {axis % rank for axis in self.channel_axes}
        if unknown := [i for i in kept if input_shape[i] is None]:
            raise SpecError(
                f"{self.name!r} keeps a range along axis {unknown[0]}, whose size is unknown: {input_shape}."
            )
        return tuple(input_shape[i] if i in kept else 1 for i in range(rank))

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """Quantize ``inputs`` (any shape); the result has their shape and data type."""
        collector = active_collector()
        if collector is not None:
            collector.observe(self, inputs)
            return inputs
        if is_exporting():
            return self._export_marker(inputs)
        flags = tf.convert_to_tensor(self._flags)
        enabled = flags[_ENABLED] > 0
        if training and self.range_policy in ("ema", "last"):
            self._track(inputs, flags)
        amax = self.range_of(inputs) if self.range_policy == "current" else tf.convert_to_tensor(self._amax)
        return tf.cond(enabled, lambda: self._quantize(inputs, amax), lambda: tf.identity(inputs))

    def _quantize(self, x: Any, amax: Any) -> Any:
        return fake_quantize(
            x,
            amax,
            num_bits=self.num_bits,
            narrow_range=self.narrow_range,
            unsigned=self.unsigned,
            learned=self.range_policy == "learned",
        )

    def range_of(self, x: Any) -> Any:
        """Return the largest magnitude of ``x``, one for each kept channel (other axes kept as 1)."""
        magnitude = self.magnitude(x)
        if self.channel_axes is None:
            return tf.reduce_max(magnitude)
        rank = len(x.shape)
        kept = {axis % rank for axis in self.channel_axes}
        return tf.reduce_max(magnitude, axis=[i for i in range(rank) if i not in kept], keepdims=True)

    def magnitude(self, x: Any) -> Any:
        """Return, in float32, how far each element of ``x`` lies from zero, in the directions that have integers."""
        x = tf.cast(x, tf.float32)
        return tf.nn.relu(x) if self.unsigned else tf.abs(x)

    def _track(self, x: Any, flags: Any) -> None:
        """Move the range towards the batch's; the first batch of an uncalibrated quantizer sets it."""
        old = tf.convert_to_tensor(self._amax)
        moving = (flags[_TRACKING] > 0) & (flags[_ENABLED] > 0)
        # The reduction costs more than the quantization, so it runs only while the range moves. The assignment
        # stands outside of the condition: a distribution strategy can't aggregate inside of one.
        seen = tf.stop_gradient(tf.cond(moving, lambda: self.range_of(x), lambda: old))
        keep: Any = self.momentum if self.range_policy == "ema" else 0.0
        if len(self._inbound_nodes) > 1:
            keep = tf.where(seen < old, 1.0 - (1.0 - keep) / SHARED_FALL, keep)
        blended = tf.where(flags[_CALIBRATED] > 0, keep * old + (1.0 - keep) * seen, seen)
        usable = moving & tf.reduce_all(tf.math.is_finite(seen))
        self._amax.assign(tf.where(usable, tf.maximum(blended, AMAX_FLOOR), old))
        calibrated = tf.where(usable, tf.ones((), tf.int32), flags[_CALIBRATED])
        self._flags.assign(tf.stack([flags[_ENABLED], flags[_TRACKING], calibrated]))

    def _export_marker(self, x: Any) -> Any:
        if not self.enabled:
            return x
        # Carries the quantizer's name into the graph; the export writes the true scales.
        y = tf.raw_ops.QuantizeAndDequantizeV3(
            input=tf.cast(x, tf.float32),
            input_min=-127.0,
            input_max=127.0,
            num_bits=8,
            signed_input=True,
            range_given=True,
            narrow_range=False,
            axis=-1,
            name=f"qdq__{self.name}",
        )
        return tf.cast(y, x.dtype)

    def compute_output_spec(self, inputs: Any, training: bool | None = None) -> Any:
        """Return a symbolic tensor like ``inputs``."""
        return keras.KerasTensor(inputs.shape, dtype=inputs.dtype)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Return ``input_shape``."""
        return input_shape

    def bind_weight(self, variable: Any) -> None:
        """Name the weight that this quantizer quantizes, so that ``amax`` can follow it."""
        self._weight_ref = weakref.ref(variable)

    @property
    def amax(self) -> np.ndarray:
        """The range: float32, a scalar, or for channels a tensor that broadcasts against the quantized one.

        Never below ``AMAX_FLOOR``. Set it to set the range by hand, which counts as calibration.
        """
        if (
            self.range_policy == "current"
            and self._weight_ref is not None
            and (weight := self._weight_ref()) is not None
        ):
            value = self.range_of(tf.convert_to_tensor(weight)).numpy()
        else:
            self._check_built()
            value = keras.ops.convert_to_numpy(self._amax)
        return np.maximum(np.asarray(value, np.float32), np.float32(AMAX_FLOOR))

    @amax.setter
    def amax(self, value: Any) -> None:
        array = np.asarray(value, np.float32)
        if not np.all(np.isfinite(array)) or np.any(array < 0):
            raise SpecError(f"A range must be finite and not negative. Received for {self.name!r}: {value!r}.")
        self._check_built()
        shape = tuple(self._amax.shape)
        try:
            array = np.broadcast_to(np.maximum(array, np.float32(AMAX_FLOOR)), shape)
        except ValueError as error:
            raise SpecError(f"The range of {self.name!r} has the shape {shape}. Received: {array.shape}.") from error
        self._amax.assign(array)
        self._switch(_CALIBRATED, True)

    def _check_built(self) -> None:
        if not self.built:
            raise SpecError(f"The quantizer {self.name!r} is not built: call it on its tensor first.")

    @property
    def scale(self) -> np.ndarray:
        """Step between two neighbouring quantized values: ``amax`` over the greatest integer, float32."""
        return self.amax / np.float32(integer_bounds(self.num_bits, self.narrow_range, self.unsigned)[1])

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
        """Whether the tensor is quantized; when not, it passes through bit for bit."""
        return self._is_on(_ENABLED)

    @property
    def frozen(self) -> bool:
        """Whether the range stays as it is while the model trains."""
        return self.range_policy == "frozen" or not self._is_on(_TRACKING)

    @property
    def calibrated(self) -> bool:
        """Whether the range was set by calibration, by training or by hand (always true for ``"current"``)."""
        return self.range_policy == "current" or self._is_on(_CALIBRATED)

    def enable(self) -> None:
        """Quantize from now on."""
        self._switch(_ENABLED, True)

    def disable(self) -> None:
        """Pass the tensor through unchanged from now on."""
        self._switch(_ENABLED, False)

    def freeze(self) -> None:
        """Keep the range as it is from now on (``"ema"`` and ``"last"``)."""
        self._switch(_TRACKING, False)

    def unfreeze(self) -> None:
        """Let the range follow the data again (``"ema"`` and ``"last"``)."""
        self._switch(_TRACKING, True)

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return {
            **super().get_config(),
            "num_bits": self.num_bits,
            "narrow_range": self.narrow_range,
            "unsigned": self.unsigned,
            "channel_axes": None if self.channel_axes is None else list(self.channel_axes),
            "range_policy": self.range_policy,
            "momentum": self.momentum,
            "calibrator": self.calibrator,
        }


def _not_below_the_floor(amax: Any) -> Any:
    return keras.ops.maximum(amax, AMAX_FLOOR)


def _initial_flags(shape: Any, dtype: Any = None) -> Any:
    return tf.constant([1, 1, 0], dtype=dtype or "int32")
