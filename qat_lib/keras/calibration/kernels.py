"""Kernels and normalizations of Keras layers, for the channel weights of calibration."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from qat_lib.calibrators.gains import Gains, GroupedWeights, Readings, reader_gains
from qat_lib.errors import UnsupportedModelError
from qat_lib.keras.graph.layer_graph import Call, LayerGraph

_OTHER_KERNELS = {"transposed", "product"}
"""Roles of layers with another kernel layout."""


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
