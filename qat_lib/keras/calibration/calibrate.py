"""Calibration of ranges from values observed with quantization disabled."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from qat_lib.calibrators.batches import BatchReader
from qat_lib.calibrators.calibration import Calibration, CalibrationReport
from qat_lib.calibrators.gains import Gains, GroupedWeights, Readings, reader_gains
from qat_lib.calibrators.methods import chosen_method
from qat_lib.errors import CalibrationError, UnsupportedModelError
from qat_lib.keras.calibration.observing import ModelCalls, TensorHistograms
from qat_lib.keras.graph.layer_graph import Call, LayerGraph, fitting_batch
from qat_lib.keras.quantizers import model_quantizers
from qat_lib.keras.quantizers.channel_relu import ChannelReLU


def calibrate(
    model: Any,
    data: Any,
    method: str | None = None,
    *,
    percentile: float | None = None,
    batch_size: int = 32,
    freeze: bool = True,
    on_batch: Callable[[int], None] | None = None,
) -> CalibrationReport:
    """Set activation ranges from data, and weight ranges from the weights.

    Args:
        model: a quantized model; its ranges are set in place.
        data: batches of inputs (an iterable or tf.data.Dataset), each an array, a list or dict of
            arrays for several inputs, or a tuple starting with one of these; or all samples at
            once, as an array ``(samples, ...)`` or a list or dict of such arrays, split into
            batches of ``batch_size``.
        method: ``"max"``, ``"percentile"``, ``"entropy"``, ``"mse"`` or ``"auto"``. ``"auto"``
            minimizes, for each tensor, the squared error in the outputs of the layers that read it.
            Default: ``"auto"``, or ``"percentile"`` if ``percentile`` is given. The calibrator of a
            quantizer takes precedence.
        percentile: for ``"percentile"``, in (0, 100]. Default 99.99.
        batch_size: batch size for array data; smaller if the tensors of a batch would exceed 1 GiB.
        freeze: whether to freeze the calibrated ranges during training. Default True, as advised by
            NVIDIA's QAT guide.
        on_batch: called with the number of processed batches.

    Returns:
        A report with the statistics of each tensor.

    Raises:
        CalibrationError: the model has no quantizer, the data is empty, or values are not finite.
    """
    method, percentile = chosen_method(method, percentile)
    quantizers = model_quantizers(model)
    if not quantizers:
        raise CalibrationError(
            f"The model {model.name!r} has no quantizer: pass it through quantize_model first."
        )
    reader = BatchReader(inputs=len(model.inputs), is_array=_is_array, convert=tf.convert_to_tensor)
    batches = reader.batches(data, _fitting_batch(model, batch_size))
    calibration = Calibration(
        quantizers=quantizers,
        method=method,
        percentile=percentile,
        freeze=freeze,
        limits=channel_limits(model),
    )
    # Gains weigh channels for "auto" only, and need the kernels of all readers.
    histograms = TensorHistograms(keras_gains(model) if calibration.needs_gains else None)
    call_model = ModelCalls(model, histograms)
    return calibration.run(histograms, batches, call_model, on_batch)


def _fitting_batch(model: Any, batch_size: int) -> int:
    try:
        return fitting_batch(LayerGraph(model), batch_size)
    except UnsupportedModelError:
        return batch_size


def _is_array(data: Any) -> bool:
    return isinstance(data, np.ndarray) or bool(tf.is_tensor(data))


def channel_limits(model: Any) -> dict[str, float]:
    """Return the smallest bound of the ``ChannelReLU`` before each quantizer, by quantizer name.

    A range up to this limit makes the bounds redundant. Otherwise, the exported graph would need a
    minimum with a constant per channel, and no engine fuses it into the preceding convolution.
    ``equalize`` sets the smallest bound at or above all observed values, so the limit clips only
    outliers. Quantizers of several tensors have no limit.
    """
    try:
        graph = LayerGraph(model)
    except UnsupportedModelError:
        return {}
    limits: dict[str, float] = {}
    for call in graph.calls:
        if not isinstance(call.core, ChannelReLU):
            continue
        for reader, _ in graph.consumers(call.outputs[0]):
            if reader.traits.is_quantizer and len(graph.calls_of(reader.layer)) == 1:
                limits[reader.layer] = min(*call.core.bounds, limits.get(reader.layer, math.inf))
    return limits


# Roles of layers with another kernel layout.
_OTHER_KERNELS = {"transposed", "product"}


def keras_gains(model: Any) -> Gains:
    """Return the gains of a quantized Keras model; empty without a graph of layers."""
    try:
        graph = LayerGraph(model)
    except UnsupportedModelError:
        return {}
    return reader_gains(graph, Readings(kernel=_kernel, factors=_factors))


def _kernel(call: Call) -> GroupedWeights | None:
    layer, roles = call.core, set(call.traits.roles)
    if "weighted" not in roles or roles & _OTHER_KERNELS or len(call.inputs) != 1:
        return None
    if len(getattr(layer, "kernel", np.zeros(0)).shape) < 2:  # a separable convolution has two
        return None
    if getattr(layer, "data_format", "channels_last") != "channels_last":
        return None
    weights = _array(layer.kernel)
    # (taps, inputs, outputs) -> (outputs, inputs of a group, taps)
    weights = weights.reshape(-1, *weights.shape[-2:])
    if "depthwise" in roles:
        taps, channels, _ = weights.shape
        return GroupedWeights(weights=weights.reshape(taps, -1).T[:, None, :], groups=channels)
    return GroupedWeights(weights=weights.transpose(2, 1, 0), groups=getattr(layer, "groups", 1))


def _factors(call: Call) -> np.ndarray | None:
    layer = call.core
    if not isinstance(layer, keras.layers.BatchNormalization):
        return None
    scale = _array(layer.gamma) if layer.scale else 1.0
    return np.asarray(scale / np.sqrt(_array(layer.moving_variance) + layer.epsilon))


def _array(variable: Any) -> np.ndarray:
    return np.asarray(tf.cast(tf.convert_to_tensor(variable), tf.float32))
