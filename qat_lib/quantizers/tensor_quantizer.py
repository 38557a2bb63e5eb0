"""TensorQuantizer: the layer that owns the range of one tensor, or of one tied group of tensors."""

from __future__ import annotations

import weakref
from typing import Any, get_args

import keras
import numpy as np
import tensorflow as tf

from qat_lib.errors import SpecError
from qat_lib.keras_graph import count_calls
from qat_lib.options import RangePolicy, WeightRangePolicy
from qat_lib.quantizers.fake_quantize import AMAX_FLOOR, fake_quantize, greatest_integer
from qat_lib.quantizers.modes import active_collector, export_marker, is_exporting
from qat_lib.quantizers.ranges import least_step, range_shape, reduced_axes
from qat_lib.quantizers.switches import CALIBRATED, ENABLED, TRACKING, Switches

RANGE_POLICIES = tuple(dict.fromkeys(get_args(RangePolicy) + get_args(WeightRangePolicy)))
INITIAL_AMAX = 6.0
SHARED_FALL = 32.0
"""How many times slower the range of several tensors falls than it rises, so that it covers the
widest of them."""


@keras.saving.register_keras_serializable(package="qat_lib")
class TensorQuantizer(Switches, keras.layers.Layer):
    """Fake-quantize a tensor and own its range.

    Args:
        num_bits: width of the integers, 2 to 16. Default 8.
        narrow_range: whether to leave out the least integer. Default False; weights use True.
        unsigned: whether the integers are unsigned: 255 steps over ``[0, amax]`` in place of 127,
            for a tensor that is never negative (what is below zero becomes zero). Default False.
            OpenVINO and ONNX Runtime run both kinds, TensorRT signed ones only.
        channel_axes: axes that keep a range of their own, such as ``(-1,)`` for a convolution's
            kernel; None, the default, gives the whole tensor one range. Activations have one range.
        range_policy: what happens to the range while the model trains:
            ``"frozen"`` it stays; ``"ema"`` (default) it follows an exponential moving average of
            the batch's largest magnitude; ``"last"`` it is the last batch's; ``"learned"`` it is
            trained, as the step between two integers with the gradient of LSQ (Esser et al. 2020,
            https://arxiv.org/abs/1902.08153); ``"current"`` it is always that of the tensor itself,
            in inference too (weights).
        momentum: weight of the old range in ``"ema"``, in [0, 1). Default 0.95.
        calibrator: name of the method that ``calibrate`` uses for this tensor; None = the one given
            to ``calibrate``.

    A quantizer that is called on several tensors gives them one range, wide enough for the widest.

    The range starts at 6 until ``calibrate`` or the first training step sets it. ``enable()``,
    ``disable()`` and ``freeze()`` take effect at once, in compiled and traced models too.

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
            raise SpecError(
                f"range_policy must be one of {', '.join(RANGE_POLICIES)}. Received: {range_policy!r}."
            )
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
        # What LSQ trains is the step: an optimizer's steps on amax, 127 times as large, would
        # hardly move it.
        self._range = self.add_weight(
            name="step" if self._learned else "amax",
            shape=range_shape(input_shape, self.channel_axes, self.name),
            initializer=self._initial_range,
            trainable=self._learned,
            # Below the floor a learned range would get no gradient, and stay there.
            constraint=_StepFloor(self._unit) if self._learned else None,
            dtype="float32",
            aggregation="mean",
        )
        self._add_switches()

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
        """How much of the range one unit of its variable is: a learned range is kept as its step."""
        return self._high if self._learned else 1.0

    def _range_tensor(self) -> Any:
        range_ = tf.convert_to_tensor(self._range)
        return range_ * self._unit if self._learned else range_

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """Quantize ``inputs`` (any shape, or a variable); the result has their shape and data type."""
        # A variable as it is stored: mixed precision casts it only after this.
        inputs = tf.convert_to_tensor(inputs)
        if (collector := active_collector()) is not None:
            collector.observe(self, inputs)
            return inputs
        if is_exporting():
            return export_marker(inputs, self.name) if self.enabled else inputs
        flags = tf.convert_to_tensor(self._flags)
        if training and self.range_policy in ("ema", "last"):
            self._track(inputs, flags)
        amax = self.range_of(inputs) if self.range_policy == "current" else self._range_tensor()
        on = tf.cast(flags[ENABLED], tf.bool)
        return tf.cond(on, lambda: self._quantize(inputs, amax), lambda: tf.identity(inputs))

    def _quantize(self, x: Any, amax: Any) -> Any:
        return fake_quantize(
            x,
            amax,
            num_bits=self.num_bits,
            narrow_range=self.narrow_range,
            unsigned=self.unsigned,
            learned=self._learned,
        )

    def range_of(self, x: Any) -> Any:
        """Return the largest magnitude of ``x``, one for each kept channel (other axes kept as 1)."""
        magnitude = self.magnitude(x)
        if self.channel_axes is None:
            return tf.reduce_max(magnitude)
        return tf.reduce_max(
            magnitude, axis=reduced_axes(len(x.shape), self.channel_axes), keepdims=True
        )

    def magnitude(self, x: Any) -> Any:
        """Return, in float32, how far each element of ``x`` lies from zero, in the directions that have integers."""
        x = tf.cast(x, tf.float32)
        return tf.nn.relu(x) if self.unsigned else tf.abs(x)

    def _track(self, x: Any, flags: Any) -> None:
        """Move the range towards the batch's; the first batch of an uncalibrated quantizer sets it."""
        old, on = tf.convert_to_tensor(self._range), tf.cast(flags, tf.bool)
        moving = on[TRACKING] & on[ENABLED]
        # The reduction costs more than the quantization, so it runs only while the range moves. The
        # assignment stands outside of the condition: a distribution strategy can't aggregate inside
        # of one.
        seen = tf.stop_gradient(tf.cond(moving, lambda: self.range_of(x), lambda: old))
        keep: Any = self.momentum if self.range_policy == "ema" else 0.0
        if count_calls(self) > 1:
            keep = tf.where(seen < old, 1.0 - (1.0 - keep) / SHARED_FALL, keep)
        blended = tf.where(on[CALIBRATED], keep * old + (1.0 - keep) * seen, seen)
        usable = moving & tf.reduce_all(tf.math.is_finite(seen))
        self._range.assign(tf.where(usable, tf.maximum(blended, AMAX_FLOOR), old))
        calibrated = tf.where(usable, tf.ones((), tf.int32), flags[CALIBRATED])
        self._flags.assign(tf.stack([flags[ENABLED], flags[TRACKING], calibrated]))

    def compute_output_spec(
        self,
        inputs: Any,
        training: bool | None = None,  # noqa: ARG002  Keras gives call's arguments
    ) -> Any:
        """Return a symbolic tensor like ``inputs``."""
        return keras.KerasTensor(inputs.shape, dtype=inputs.dtype)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Return ``input_shape``."""
        return input_shape

    def bind_weight(self, variable: Any) -> None:
        """Name the weight that this quantizer quantizes: its range is the first one, and ``"current"`` follows it."""
        self._weight_ref = weakref.ref(variable)

    def _weight(self) -> Any:
        return None if self._weight_ref is None else self._weight_ref()

    @property
    def of_weight(self) -> bool:
        """Whether this quantizes a weight, whose range needs no data."""
        return self._weight() is not None

    def fit_weight(self) -> None:
        """Set the range to that of the weight as it is now; with ``"current"`` it always is."""
        if self.range_policy != "current":
            self.amax = self.range_of(tf.convert_to_tensor(self._weight())).numpy()

    @property
    def amax(self) -> np.ndarray:
        """The range: float32, a scalar, or for channels a tensor that broadcasts against the quantized one.

        Never below ``AMAX_FLOOR``. Set it to set the range by hand, which counts as calibration.
        """
        if self.range_policy == "current" and (weight := self._weight()) is not None:
            value = self.range_of(tf.convert_to_tensor(weight)).numpy()
        else:
            self._check_built()
            value = keras.ops.convert_to_numpy(self._range) * np.float32(self._unit)
        return np.maximum(np.asarray(value, np.float32), np.float32(AMAX_FLOOR))

    @amax.setter
    def amax(self, value: Any) -> None:
        array = np.asarray(value, np.float32)
        if not np.all(np.isfinite(array)) or np.any(array < 0):
            raise SpecError(
                f"A range must be finite and not negative. Received for {self.name!r}: {value!r}."
            )
        self._check_built()
        shape = tuple(self._range.shape)
        try:
            array = np.broadcast_to(np.maximum(array, np.float32(AMAX_FLOOR)), shape)
        except ValueError as error:
            raise SpecError(
                f"The range of {self.name!r} has the shape {shape}. Received: {array.shape}."
            ) from error
        self._assign_amax(array)
        self._switch(CALIBRATED, True)

    def _assign_amax(self, array: np.ndarray) -> None:
        # Multiplied by its unit again, the step must not come out below the floor.
        least = least_step(self._high) if self._learned else np.float32(AMAX_FLOOR)
        self._range.assign(np.maximum(array / np.float32(self._unit), least))

    @property
    def scale(self) -> np.ndarray:
        """Step between two neighbouring quantized values: ``amax`` over the greatest integer, float32."""
        return self.amax / np.float32(self._high)

    @property
    def frozen(self) -> bool:
        """Whether the range stays as it is while the model trains."""
        return self.range_policy == "frozen" or not self._is_on(TRACKING)

    @property
    def calibrated(self) -> bool:
        """Whether the range was set by calibration, by training or by hand (always true for weights)."""
        return self.range_policy == "current" or self.of_weight or self._is_on(CALIBRATED)

    def take_over(self, other: TensorQuantizer) -> None:
        """Take the range and the switches of another quantizer, whatever the policies of both are."""
        if other._unit == self._unit:
            self._range.assign(other._range.value)
        else:
            self._assign_amax(other.amax)
        self._flags.assign(other._flags.value)

    def save_own_variables(self, store: Any) -> None:
        """Save the range as amax, and if it is learned the step, too, which amax gives but for its rounding."""
        if not self._learned:
            super().save_own_variables(store)
            return
        store["0"], store["1"] = self.amax, self._flags
        store["step"] = self._range

    def load_own_variables(self, store: Any) -> None:
        """Load what :meth:`save_own_variables` saved, also before learned ranges had a step, or of another policy."""
        if not self._learned and "step" not in store:
            super().load_own_variables(store)
            return
        if self._learned and "step" in store:
            self._range.assign(store["step"])
        else:
            self._assign_amax(np.asarray(store["0"]))
        self._flags.assign(store["1"])

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


class _StepFloor(keras.constraints.Constraint):
    """Keep a learned step, of which ``high`` make the range, at or above the least one."""

    def __init__(self, high: float) -> None:
        self.least = least_step(high)

    def __call__(self, w: Any) -> Any:
        return keras.ops.maximum(w, self.least)
