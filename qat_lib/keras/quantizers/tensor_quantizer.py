"""TensorQuantizer: layer that fake-quantizes tensors with a common range."""

from __future__ import annotations

import re
from typing import Any

import keras
import tensorflow as tf

from qat_lib.calibrators.collecting import active_collector
from qat_lib.core.ranges import AMAX_FLOOR, SHARED_FALL, check_settings, integer_bounds
from qat_lib.keras.quantizers.branching import Branch
from qat_lib.keras.quantizers.fake_quantize import quantize_whole, quantize_within
from qat_lib.keras.quantizers.large_weights import is_large
from qat_lib.keras.quantizers.modes import export_marker, is_exporting
from qat_lib.keras.quantizers.range_variable import RangeVariable, largest_magnitude, largest_pair
from qat_lib.keras.quantizers.rectified import Rectified, Relu, rectified
from qat_lib.keras.quantizers.shared_graph import shared
from qat_lib.keras.quantizers.split_batch import learned_by_all, observed_by_all
from qat_lib.keras.quantizers.switches import CALIBRATED, ENABLED, TRACKING, switches
from qat_lib.keras.structure import count_calls, layers_of


@keras.saving.register_keras_serializable(package="qat_lib")
class TensorQuantizer(RangeVariable):
    """Fake-quantize a tensor and store its range.

    Args:
        num_bits: bit width of the integers, 2 to 16. Default 8.
        narrow_range: whether to exclude the least integer. Default False; weights use True.
        unsigned: whether to use unsigned integers: 255 steps over ``[0, amax]`` instead of 127, for
            non-negative tensors (negative values are clipped to zero). Default False. OpenVINO and
            ONNX Runtime support both, TensorRT only signed integers.
        channel_axes: axes with separate ranges, such as ``(-1,)`` for the kernel of a convolution;
            None, the default, uses one range for the whole tensor, as for activations.
        range_policy: update of the range during training:
            ``"frozen"`` does not change it; ``"ema"`` (default) tracks an exponential moving
            average of the largest magnitude of each batch; ``"last"`` takes the range of the last
            batch; ``"learned"`` trains the step between two integers with the LSQ gradient (Esser
            et al. 2020, https://arxiv.org/abs/1902.08153); ``"current"`` always takes the range of
            the tensor itself, also in inference (weights).
        momentum: weight of the old range for ``"ema"``, in [0, 1). Default 0.95.
        calibrator: calibration method of this tensor; None = the method passed to ``calibrate``.
        pair_axis: axis of a weight with neighbours (0 and 1, 2 and 3, ...) added in 16 bits by
            kernels for CPUs without VNNI. The range covers the largest sum of a pair, so 8-bit
            activations can't overflow it. Default None: the largest magnitude.

    A quantizer called on several tensors uses one range for all of them, that of the widest.

    The initial range is 6, until ``calibrate`` or the first training step. ``enable()``,
    ``disable()`` and ``freeze()`` take effect immediately, also in compiled and traced models.

    Examples:
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
        pair_axis: int | None = None,
        **kwargs: Any,
    ) -> None:
        check_settings(num_bits, narrow_range, unsigned, range_policy, momentum)
        kwargs.setdefault("dtype", "float32")
        super().__init__(autocast=False, **kwargs)
        self.num_bits = num_bits
        self.narrow_range = narrow_range
        self.unsigned = unsigned
        self.channel_axes = None if channel_axes is None else tuple(channel_axes)
        self.range_policy = range_policy
        self.momentum = momentum
        self.calibrator = calibrator
        self.pair_axis = pair_axis
        self.supports_masking = True
        self._weight_ref: Any = None

    def build(self, input_shape: Any) -> None:
        """Create the range and the switches."""
        self._add_range(input_shape)
        self._add_switches()

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """Return ``inputs``, a tensor or variable, fake-quantized in its own data type."""
        # The stored value of a variable, without the cast of mixed precision: it follows later.
        inputs = tf.convert_to_tensor(inputs)
        # A collector may replace the output; None passes the input unquantized, as in calibration.
        if (collector := active_collector()) is not None:
            replaced = collector.observe(self, inputs)
            return inputs if replaced is None else replaced
        if is_exporting():
            return export_marker(inputs, self.name) if self.enabled else inputs
        flags = tf.convert_to_tensor(self._flags)
        relu = self._relu_before(inputs, bool(training))
        if training and self.range_policy in ("ema", "last"):
            self._track(inputs, relu, flags)
        quantized = self._quantize(inputs, relu, flags, bool(training))
        # Shared graph functions return unknown static shapes.
        quantized.set_shape(inputs.shape)
        return quantized

    def _relu_before(self, x: Any, training: bool) -> Rectified | None:
        if self.channel_axes is not None or self.range_policy == "current":
            return None
        # ``Rectified`` supports learned ranges in training steps only.
        return None if self._learned and not training else rectified(x)

    def _quantize(self, x: Any, relu: Rectified | None, flags: Any, training: bool) -> Any:
        bounds = integer_bounds(self.num_bits, self.narrow_range, self.unsigned)
        if self.range_policy == "current":
            channels, shape = self.channel_axes, tuple(x.shape) if is_large(x) else None
            return _by_itself(
                x,
                flags,
                bounds=bounds,
                channels=channels,
                pair_axis=self.pair_axis,
                shape=shape,
                training=training,
            )
        range_ = tf.convert_to_tensor(self._range)
        if self._learned and not self.of_weight:
            range_ = learned_by_all(range_)
        if relu is not None and self._learned:
            return relu.quantize_learned(range_, flags, self._high)
        if relu is not None:
            return relu.quantize(range_, flags, self._high, training)
        unit = self._unit if self._learned else None
        return _by_range(x, range_, flags, bounds=bounds, unit=unit, training=training)

    def _track(self, x: Any, relu: Rectified | None, flags: Any) -> None:
        """Update the range with a batch; the first batch sets an uncalibrated range."""
        old = tf.convert_to_tensor(self._range)
        x, function = (x, None) if relu is None else (relu.source, relu.relu)
        # The reduction runs only while the range is tracked. The assignment is outside the branch,
        # because a distribution strategy can't aggregate inside one.
        seen = _observed(
            x, old, flags, relu=function, channels=self.channel_axes, unsigned=self.unsigned
        )
        seen = observed_by_all(seen)
        keep = self.momentum if self.range_policy == "ema" else 0.0
        # Of several tensors, those with smaller values must not shrink the range of the widest.
        falling = 1.0 - (1.0 - keep) / SHARED_FALL if count_calls(self) > 1 else keep
        range_, flags = _moved(old, seen, flags, rising=keep, falling=falling)
        range_.set_shape(old.shape)
        self._range.assign(range_)
        self._flags.assign(flags)

    def compute_output_spec(
        self,
        inputs: Any,
        training: bool | None = None,  # noqa: ARG002  Keras gives call's arguments
    ) -> Any:
        """Return a symbolic tensor with the shape and data type of ``inputs``."""
        return keras.KerasTensor(inputs.shape, dtype=inputs.dtype)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Return ``input_shape``."""
        return input_shape

    @property
    def frozen(self) -> bool:
        """Whether training does not change the range."""
        return self.range_policy == "frozen" or not self._is_on(TRACKING)

    @property
    def calibrated(self) -> bool:
        """Whether the range is set; always true for weights."""
        return self.range_policy == "current" or self.of_weight or self._is_on(CALIBRATED)

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
            **({} if self.pair_axis is None else {"pair_axis": self.pair_axis}),
        }


@shared
def _by_range(
    x: Any,
    range_: Any,
    flags: Any,
    *,
    bounds: tuple[float, float],
    unit: float | None,
    training: bool,
) -> Any:
    """Quantize with a range, or with a learned step if ``unit`` (steps per range) is given."""
    amax = range_ if unit is None else range_ * unit
    branch, learned = Branch(switches(flags)[ENABLED]), unit is not None
    return quantize_within(x, amax, bounds, learned=learned, branch=branch, training=training)


@shared
def _by_itself(
    x: Any,
    flags: Any,
    *,
    bounds: tuple[float, float],
    channels: tuple[int, ...] | None,
    pair_axis: int | None,
    shape: tuple[int, ...] | None,
    training: bool,
) -> Any:
    """Quantize with the range of the tensor itself; ``shape`` is given for large tensors."""
    if shape is not None:
        x.set_shape(shape)
    branch, unsigned = Branch(switches(flags)[ENABLED]), bounds[0] == 0

    def range_of(x: Any) -> Any:
        if pair_axis is not None:
            return largest_pair(x, channels, pair_axis)
        return largest_magnitude(x, channels, unsigned)

    if unsigned:
        return quantize_within(x, range_of(x), bounds, branch=branch, training=training)
    return quantize_whole(x, range_of, bounds[1], branch=branch)


@shared
def _observed(
    x: Any,
    old: Any,
    flags: Any,
    *,
    relu: Relu | None,
    channels: tuple[int, ...] | None,
    unsigned: bool,
) -> Any:
    """Return the range of a batch if tracking is on, else the old range."""

    def range_of(x: Any) -> Any:
        # ReLU is monotonic: apply it to the maximum instead of the whole tensor.
        if relu is not None:
            return tf.cast(relu(tf.reduce_max(x)), tf.float32)
        return largest_magnitude(x, channels, unsigned)

    on = switches(flags)
    return Branch(on[TRACKING] & on[ENABLED]).run(tf.stop_gradient(x), range_of, old)


@shared
def _moved(old: Any, seen: Any, flags: Any, *, rising: float, falling: float) -> tuple[Any, Any]:
    """Return the updated range and switches after a batch.

    The weight of the old range is ``falling`` if the batch has a smaller range, else ``rising``.
    """
    on = switches(flags)
    keep = rising if rising == falling else tf.where(seen < old, falling, rising)
    blended = tf.where(on[CALIBRATED], keep * old + (1.0 - keep) * seen, seen)
    # A batch with an overflow must not destroy the range.
    usable = on[TRACKING] & on[ENABLED] & tf.reduce_all(tf.math.is_finite(seen))
    moved = tf.where(usable, tf.maximum(blended, AMAX_FLOOR), old)
    calibrated = tf.constant([0, 0, 1], flags.dtype)  # of the switches CALIBRATED alone
    return moved, tf.maximum(flags, tf.cast(usable, flags.dtype) * calibrated)


def model_quantizers(model: Any, pattern: str | None = None) -> dict[str, TensorQuantizer]:
    """Return the TensorQuantizers of a model by name.

    Args:
        model: a quantized model.
        pattern: a regular expression that matches the full name; None = all.
    """
    found = {q.name: q for layer in layers_of(model) if isinstance(q := layer, TensorQuantizer)}
    return {name: q for name, q in found.items() if pattern is None or re.fullmatch(pattern, name)}
