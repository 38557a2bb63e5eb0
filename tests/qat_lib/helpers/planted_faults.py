"""Small networks with a planted fault that quantization suffers from."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import layers

import qat_lib


def images(count: int = 16) -> np.ndarray:
    """Return random inputs of ``network``."""
    return np.random.default_rng(0).normal(size=(count, 8, 8, 3)).astype(np.float32)


def network(seed: int = 0) -> Any:
    """Return three convolutions, a depthwise one in between, and a classifier."""
    keras.utils.set_random_seed(seed)
    x = inputs = keras.Input((8, 8, 3), name="image")
    for number in (1, 2, 3):
        x = layers.Conv2D(8, 3, padding="same", name=f"conv{number}")(x)
        x = layers.ReLU(name=f"relu{number}")(x)
        if number == 2:
            x = layers.DepthwiseConv2D(3, padding="same", name="depth")(x)
            x = layers.ReLU(name="relu_depth")(x)
    x = layers.GlobalAveragePooling2D(name="pool")(x)
    return keras.Model(inputs, layers.Dense(5, name="logits")(x), name="small")


def scale_channel(model: Any, layer: str, reader: str | None, channel: int, factor: float) -> None:
    """Scale an output channel of a layer, and divide it out in the one that reads it."""
    weights = model.get_layer(layer).get_weights()
    if "depth" in layer:
        weights[0][:, :, channel, :] *= factor
    else:
        weights[0][..., channel] *= factor
    weights[1][channel] *= factor
    model.get_layer(layer).set_weights(weights)
    if reader is not None:
        weights = model.get_layer(reader).get_weights()
        weights[0][:, :, channel, :] /= factor
        model.get_layer(reader).set_weights(weights)


def quantized(model: Any, spec: Any = None, method: str = "percentile") -> Any:
    """Return the model quantized and calibrated on ``images``."""
    result = qat_lib.quantize_model(model, quantization_spec=spec, custom_qdq_cases="auto")
    qat_lib.calibrate(result, images(), method)
    return result
