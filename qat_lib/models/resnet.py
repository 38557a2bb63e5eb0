"""Residual networks for 8x8 digits, and CIFAR ResNet-20.

ResNet-20 follows He et al. 2015 (https://arxiv.org/abs/1512.03385).
"""

from __future__ import annotations

from typing import Any

import keras
from keras import layers


def resnet_digits(
    *,
    input_shape: tuple[int, int, int] = (8, 8, 1),
    classes: int = 10,
    width: int = 48,
    blocks: int = 1,
) -> Any:
    """Build a residual network for 8x8 images.

    Args:
        input_shape: (height, width, channels), at least 4x4.
        classes: number of logits.
        width: channels of the first stage; the stages have ``width``, ``2*width`` and ``4*width``.
            Default 48 (1.5 M parameters); ResNet-18 has 64.
        blocks: identity blocks of each stage; stages two and three also start with a projection
            block.

    Returns:
        A Functional model from ``(batch, height, width, channels)`` to logits ``(batch, classes)``.
    """
    inputs = keras.Input(input_shape, name="image")
    x = _conv_bn(inputs, width, 3, "stem")
    x = layers.ReLU(name="stem_relu")(x)
    x = layers.MaxPooling2D(2, strides=1, padding="same", name="stem_pool")(x)
    for stage in range(3):
        if stage:
            x = _projection_block(x, width * 2**stage, f"stage{stage + 1}_down")
        for block in range(blocks):
            x = _identity_block(x, width * 2**stage, f"stage{stage + 1}_block{block + 1}")
    x = layers.GlobalAveragePooling2D(name="pool")(x)
    return keras.Model(inputs, layers.Dense(classes, name="logits")(x), name="resnet_digits")


def resnet20_cifar10(*, input_shape: tuple[int, int, int] = (32, 32, 3), classes: int = 10) -> Any:
    """Build CIFAR ResNet-20 with parameter-free shortcuts (option A).

    The shortcuts subsample and append zero channels.

    Args:
        input_shape: (height, width, channels).
        classes: number of logits.

    Returns:
        A Functional model with 0.27 M parameters, from normalized RGB ``(batch, height, width, 3)``
        to logits.
    """
    inputs = keras.Input(input_shape, name="image")
    x = layers.ReLU(name="relu1")(_conv_bn(inputs, 16, 3, "1", padding=1))
    for stage, filters in enumerate((16, 32, 64), 1):
        for block in range(3):
            x = _option_a_block(x, filters, f"layer{stage}_{block}", down=stage > 1 and block == 0)
    x = layers.GlobalAveragePooling2D(name="pool")(x)
    return keras.Model(inputs, layers.Dense(classes, name="linear")(x), name="resnet20_cifar10")


def _conv_bn(
    x: Any, filters: int, size: int, name: str, strides: int = 1, padding: int | None = None
) -> Any:
    """Convolve and normalize; ``padding`` is equal on all sides, as in PyTorch."""
    if padding and strides > 1:
        x = layers.ZeroPadding2D(padding, name=f"{name}_pad")(x)
    mode = "valid" if padding and strides > 1 else "same"
    conv, bn = (f"conv{name}", f"bn{name}") if name.isdigit() else (f"{name}_conv", f"{name}_bn")
    x = layers.Conv2D(filters, size, strides=strides, padding=mode, use_bias=False, name=conv)(x)
    return layers.BatchNormalization(momentum=0.9, epsilon=1e-5, name=bn)(x)


def _identity_block(x: Any, filters: int, name: str) -> Any:
    y = layers.ReLU(name=f"{name}_relu1")(_conv_bn(x, filters, 3, f"{name}_1"))
    y = layers.Add(name=f"{name}_add")([_conv_bn(y, filters, 3, f"{name}_2"), x])
    return layers.ReLU(name=f"{name}_relu2")(y)


def _projection_block(x: Any, filters: int, name: str) -> Any:
    y = layers.ReLU(name=f"{name}_relu1")(_conv_bn(x, filters, 3, f"{name}_1", strides=2))
    y = _conv_bn(y, filters, 3, f"{name}_2")
    y = layers.Add(name=f"{name}_add")([y, _conv_bn(x, filters, 1, f"{name}_shortcut", strides=2)])
    return layers.ReLU(name=f"{name}_relu2")(y)


def _option_a_block(x: Any, filters: int, name: str, *, down: bool) -> Any:
    y = layers.ReLU(name=f"{name}_relu1")(
        _conv_bn(x, filters, 3, f"{name}_1", strides=2 if down else 1, padding=1)
    )
    y = _conv_bn(y, filters, 3, f"{name}_2", padding=1)
    if down:
        # A pool over one pixel with stride 2 is He et al.'s strided subsampling.
        x = layers.MaxPooling2D(1, strides=2, name=f"{name}_subsample")(x)
        x = keras.ops.pad(x, [[0, 0], [0, 0], [0, 0], [filters // 4, filters // 4]])
    return layers.ReLU(name=f"{name}_relu2")(layers.Add(name=f"{name}_add")([y, x]))
