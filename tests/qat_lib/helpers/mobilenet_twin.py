"""MobileNetV2 in Keras with the layers of torchvision's, for weights with its names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
from keras import layers

from qat_lib.torch.models.mobilenet import LAST_STAGE, STAGES


def mobilenet_twin(weights: Mapping[str, np.ndarray], *, size: int) -> Any:
    """Return the network with its weights, for images of ``size`` pixels.

    Layers are called as PyTorch's modules, with underscores for dots.
    """
    image = keras.Input((size, size, 3), name="image")
    x = _conv_bn_relu(image, "features.0", 32, 3, 2)
    width, number = 32, 1
    for expansion, filters, blocks, first_stride in (*STAGES, LAST_STAGE):
        for block in range(blocks):
            stride = first_stride if block == 0 else 1
            x = _inverted_residual(x, f"features.{number}", width, filters, stride, expansion)
            width, number = filters, number + 1
    x = _conv_bn_relu(x, f"features.{number}", 1280, 1, 1)
    x = layers.GlobalAveragePooling2D(name="pool")(x)
    classes = len(weights["classifier.1.bias"])
    model = keras.Model(image, layers.Dense(classes, name=_name("classifier.1"))(x))
    _assign(model, weights)
    return model


def _name(path: str) -> str:
    return path.replace(".", "_")


def _conv_bn_relu(x: Any, path: str, filters: int, size: int, stride: int) -> Any:
    """Convolve, normalize and clip; ``filters`` of 0 stands for a depthwise convolution."""
    if stride > 1:
        x = layers.ZeroPadding2D(1, name=_name(f"{path}.pad"))(x)
    options = {
        "strides": stride,
        "padding": "valid" if stride > 1 else "same",
        "use_bias": False,
        "name": _name(f"{path}.0"),
    }
    depthwise = layers.DepthwiseConv2D(size, **options)
    x = layers.Conv2D(filters, size, **options)(x) if filters else depthwise(x)
    x = layers.BatchNormalization(epsilon=1e-5, name=_name(f"{path}.1"))(x)
    return layers.ReLU(6.0, name=_name(f"{path}.2"))(x)


def _inverted_residual(
    x: Any, path: str, before: int, filters: int, stride: int, expansion: int
) -> Any:
    y, place = x, 0
    if expansion > 1:
        y, place = _conv_bn_relu(y, f"{path}.conv.0", before * expansion, 1, 1), 1
    y = _conv_bn_relu(y, f"{path}.conv.{place}", 0, 3, stride)
    conv, norm = f"{path}.conv.{place + 1}", f"{path}.conv.{place + 2}"
    y = layers.Conv2D(filters, 1, use_bias=False, name=_name(conv))(y)
    y = layers.BatchNormalization(epsilon=1e-5, name=_name(norm))(y)
    if stride == 1 and before == filters:
        y = layers.Add(name=_name(f"{path}.add"))([x, y])
    return y


def _assign(model: Any, weights: Mapping[str, np.ndarray]) -> None:
    paths = {_name(path): path for path in (key.rpartition(".")[0] for key in weights)}
    for layer in model.layers:
        path = paths.get(layer.name)
        if path is None:
            continue
        if isinstance(layer, layers.BatchNormalization):
            names = ("weight", "bias", "running_mean", "running_var")
            layer.set_weights([weights[f"{path}.{name}"] for name in names])
        elif isinstance(layer, layers.Dense):
            layer.set_weights([weights[f"{path}.weight"].T, weights[f"{path}.bias"]])
        else:
            axes = (2, 3, 0, 1) if isinstance(layer, layers.DepthwiseConv2D) else (2, 3, 1, 0)
            layer.set_weights([weights[f"{path}.weight"].transpose(axes)])
