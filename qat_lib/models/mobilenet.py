"""MobileNetV2 of Sandler et al. 2018 (https://arxiv.org/abs/1801.04381), padded as in PyTorch."""

from __future__ import annotations

from typing import Any

import keras
from keras import layers

from qat_lib.models.mobilenet_stages import STAGES


def mobilenetv2_imagenet(
    *, input_shape: tuple[int, int, int] = (224, 224, 3), classes: int = 1000, dropout: float = 0.2
) -> Any:
    """Build MobileNetV2 1.0 in torchvision's layout, compatible with its weights.

    Keras's builder pads differently at stride 2. Layers have the names of torchvision's modules
    with ``_`` instead of dots: ``features_1_conv_0_0``.

    Args:
        input_shape: (height, width, channels), at least 32x32.
        classes: number of logits.
        dropout: share of features dropped before the logits in training, in [0, 1).
            Default 0.2.

    Returns:
        A Functional model with 3.5 M parameters (1000 classes), from normalized RGB
        ``(batch, height, width, channels)`` to logits ``(batch, classes)``.
    """
    inputs = keras.Input(input_shape, name="image")
    x = _conv_bn(inputs, 32, 3, "features_0_0", "features_0_1", strides=2)
    x = layers.ReLU(6.0, name="features_0_2")(x)
    block = 1
    for expansion, channels, repeats, stride in STAGES:
        for index in range(repeats):
            name = f"features_{block}"
            x = _inverted_residual(x, channels, expansion, stride if index == 0 else 1, name)
            block += 1
    x = _conv_bn(x, 1280, 1, f"features_{block}_0", f"features_{block}_1")
    x = layers.ReLU(6.0, name=f"features_{block}_2")(x)
    x = layers.GlobalAveragePooling2D(name="pool")(x)
    x = layers.Dropout(dropout, name="classifier_0")(x)
    logits = layers.Dense(classes, name="classifier_1")(x)
    return keras.Model(inputs, logits, name="mobilenetv2_imagenet")


def _inverted_residual(x: Any, channels: int, expansion: int, stride: int, name: str) -> Any:
    """Expand, convolve depthwise, project; add the input if the shapes agree."""
    y, part = x, 0
    if expansion != 1:
        inside = f"{name}_conv_0"
        y = _conv_bn(y, x.shape[-1] * expansion, 1, f"{inside}_0", f"{inside}_1")
        y = layers.ReLU(6.0, name=f"{inside}_2")(y)
        part = 1
    inside = f"{name}_conv_{part}"
    y = _conv_bn(y, None, 3, f"{inside}_0", f"{inside}_1", strides=stride)
    y = layers.ReLU(6.0, name=f"{inside}_2")(y)
    y = _conv_bn(y, channels, 1, f"{name}_conv_{part + 1}", f"{name}_conv_{part + 2}")
    if stride == 1 and x.shape[-1] == channels:
        y = layers.Add(name=f"{name}_add")([x, y])
    return y


def _conv_bn(x: Any, filters: int | None, size: int, conv: str, norm: str, strides: int = 1) -> Any:
    """Convolve and normalize with equal padding on all sides; depthwise without ``filters``."""
    # At stride 2 and even sizes, Keras's "same" pads only the bottom and right.
    if strides > 1:
        x = layers.ZeroPadding2D(size // 2, name=f"{conv}_pad")(x)
    padding = "valid" if strides > 1 else "same"
    options = {"strides": strides, "padding": padding, "use_bias": False, "name": conv}
    layer = (
        layers.DepthwiseConv2D(size, **options)
        if filters is None
        else layers.Conv2D(filters, size, **options)
    )
    return layers.BatchNormalization(momentum=0.9, epsilon=1e-5, name=norm)(layer(x))
