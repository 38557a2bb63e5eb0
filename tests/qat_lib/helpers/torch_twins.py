"""Equal networks in PyTorch and Keras, with equal layer and function names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import torch
import torch.nn.functional as F  # noqa: N812
from keras import layers
from torch import nn


class Residual(nn.Module):
    """A stem with pool, a plain and a convolutional shortcut block."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.stem_bn = nn.BatchNorm2d(8)
        self.stem_relu = nn.ReLU(inplace=True)
        self.pool = nn.MaxPool2d(2)
        for name, width, stride in (("a", 8, 1), ("b", 16, 2)):
            self.add_module(f"{name}1", nn.Conv2d(8, width, 3, stride, 1, bias=False))
            self.add_module(f"{name}1_bn", nn.BatchNorm2d(width))
            self.add_module(f"{name}1_relu", nn.ReLU(inplace=True))
            self.add_module(f"{name}2", nn.Conv2d(width, width, 3, 1, 1, bias=False))
            self.add_module(f"{name}2_bn", nn.BatchNorm2d(width))
            self.add_module(f"{name}_relu", nn.ReLU(inplace=True))
        self.short = nn.Conv2d(8, 16, 1, 2, bias=False)
        self.short_bn = nn.BatchNorm2d(16)
        self.gap = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.head = nn.Linear(16, 10)

    def block(self, name: str, x: Any) -> Any:
        for part in ("1", "1_bn", "1_relu", "2", "2_bn"):
            x = self.get_submodule(name + part)(x)
        return x

    def forward(self, x: Any) -> Any:
        x = self.pool(self.stem_relu(self.stem_bn(self.stem(x))))
        y = self.block("a", x)
        y += x
        x = self.a_relu(y)
        x = self.b_relu(self.block("b", x) + self.short_bn(self.short(x)))
        return self.head(self.flatten(self.gap(x)))


def residual() -> keras.Model:
    x = inputs = keras.Input((16, 16, 3), name="x")
    x = _conv("stem", 8, 3)(x)
    x = layers.ReLU(name="stem_relu")(layers.BatchNormalization(name="stem_bn")(x))
    x = layers.MaxPooling2D(name="pool")(x)
    x = layers.ReLU(name="a_relu")(layers.Add(name="add")([_block("a", 8, 1, x), x]))
    main = _block("b", 16, 2, x)
    short = layers.BatchNormalization(name="short_bn")(_conv("short", 16, 1, 2)(x))
    x = layers.ReLU(name="b_relu")(layers.Add(name="add_1")([main, short]))
    x = layers.GlobalAveragePooling2D(name="gap", keepdims=True)(x)
    x = layers.Dense(10, name="head")(layers.Flatten(name="flatten")(x))
    return keras.Model(inputs, x)


def _conv(name: str, width: int, size: int, stride: int = 1, **options: Any) -> Any:
    options = {"padding": "same", "use_bias": False} | options
    return layers.Conv2D(width, size, stride, name=name, **options)


def _block(name: str, width: int, stride: int, x: Any) -> Any:
    x = layers.BatchNormalization(name=f"{name}1_bn")(_conv(f"{name}1", width, 3, stride)(x))
    x = layers.ReLU(name=f"{name}1_relu")(x)
    return layers.BatchNormalization(name=f"{name}2_bn")(_conv(f"{name}2", width, 3)(x))


class Inverted(nn.Module):
    """MobileNetV2's blocks: expansion, depthwise convolution, projection, shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, 2, 1)
        self.stem_relu = nn.ReLU6()
        for name in ("a", "b"):
            self.add_module(f"{name}_expand", nn.Conv2d(8, 24, 1))
            self.add_module(f"{name}_expand_bn", nn.BatchNorm2d(24))
            self.add_module(f"{name}_expand_relu", nn.ReLU6(inplace=True))
            self.add_module(f"{name}_depthwise", nn.Conv2d(24, 24, 3, padding=1, groups=24))
            self.add_module(f"{name}_depthwise_relu", nn.ReLU6(inplace=True))
            self.add_module(f"{name}_project", nn.Conv2d(24, 8, 1))
            self.add_module(f"{name}_project_bn", nn.BatchNorm2d(8))
        self.dropout = nn.Dropout(0.2)
        self.head = nn.Linear(8, 10)

    def forward(self, x: Any) -> Any:
        x = self.stem_relu(self.stem(x))
        for name in ("a", "b"):
            y = x
            for part in ("expand", "expand_bn", "expand_relu", "depthwise", "depthwise_relu"):
                y = self.get_submodule(f"{name}_{part}")(y)
            y = self.get_submodule(f"{name}_project_bn")(self.get_submodule(f"{name}_project")(y))
            x = x + y
        x = F.adaptive_avg_pool2d(x, 1)
        return self.head(self.dropout(torch.flatten(x, 1)))


def inverted() -> keras.Model:
    x = inputs = keras.Input((16, 16, 3), name="x")
    x = layers.ReLU(max_value=6.0, name="stem_relu")(_conv("stem", 8, 3, 2)(x))
    for name, add in (("a", "add"), ("b", "add_1")):
        y = layers.BatchNormalization(name=f"{name}_expand_bn")(_conv(f"{name}_expand", 24, 1)(x))
        y = layers.ReLU(max_value=6.0, name=f"{name}_expand_relu")(y)
        y = layers.DepthwiseConv2D(3, padding="same", name=f"{name}_depthwise")(y)
        y = layers.ReLU(max_value=6.0, name=f"{name}_depthwise_relu")(y)
        y = layers.BatchNormalization(name=f"{name}_project_bn")(_conv(f"{name}_project", 8, 1)(y))
        x = layers.Add(name=add)([x, y])
    x = layers.GlobalAveragePooling2D(name="adaptive_avg_pool2d", keepdims=True)(x)
    x = layers.Dropout(0.2, name="dropout")(layers.Flatten(name="flatten")(x))
    return keras.Model(inputs, layers.Dense(10, name="head")(x))


class Inception(nn.Module):
    """Branches of convolutions and pools that meet in a concatenation."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.one = nn.Conv2d(8, 4, 1)
        self.three_in = nn.Conv2d(8, 4, 1)
        self.three = nn.Conv2d(4, 4, 3, padding=1)
        self.pool = nn.MaxPool2d(3, 1, 1)
        self.pool_conv = nn.Conv2d(8, 4, 1)
        self.average = nn.AvgPool2d(3, 1, 1)
        self.average_conv = nn.Conv2d(8, 4, 1)
        self.mix = nn.Conv2d(16, 8, 3, padding=1)
        self.head = nn.Linear(24, 10)

    def forward(self, x: Any) -> Any:
        x = F.relu(self.stem(x))
        branches = [
            F.relu(self.one(x)),
            F.relu(self.three(F.relu(self.three_in(x)))),
            F.relu(self.pool_conv(self.pool(x))),
            F.relu(self.average_conv(self.average(x))),
        ]
        x = torch.cat(branches, 1)
        x = torch.cat([F.relu(self.mix(x)), x], 1)
        return self.head(x.mean([2, 3]))


def inception() -> keras.Model:
    relu = [layers.ReLU(name="relu" if i == 0 else f"relu_{i}") for i in range(7)]
    inputs = keras.Input((16, 16, 3), name="x")
    x = relu[0](_conv("stem", 8, 3)(inputs))
    one = relu[1](_conv("one", 4, 1)(x))
    three = relu[3](_conv("three", 4, 3)(relu[2](_conv("three_in", 4, 1)(x))))
    pool = layers.MaxPooling2D(3, 1, "same", name="pool")(x)
    pool = relu[4](_conv("pool_conv", 4, 1)(pool))
    average = layers.AveragePooling2D(3, 1, "same", name="average")(x)
    average = relu[5](_conv("average_conv", 4, 1)(average))
    x = layers.Concatenate(name="cat")([one, three, pool, average])
    x = layers.Concatenate(name="cat_1")([relu[6](_conv("mix", 8, 3)(x)), x])
    x = layers.GlobalAveragePooling2D(name="mean")(x)
    return keras.Model(inputs, layers.Dense(10, name="head")(x))


class Reused(nn.Module):
    """A reused convolution, a reused activation, and two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)
        self.relu = nn.ReLU()
        self.side = nn.Conv2d(3, 3, 1)
        self.join = nn.Conv2d(3, 4, 3, padding=1)
        self.head = nn.Linear(4, 10)

    def forward(self, left: Any, right: Any) -> Any:
        x = self.relu(self.conv(left))
        x = self.relu(self.conv(x)) + self.side(right)
        x = self.relu(self.join(x))
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


def reused() -> keras.Model:
    left, right = (keras.Input((16, 16, 3), name=name) for name in ("left", "right"))
    conv, relu = _conv("conv", 3, 3), layers.ReLU(name="relu")
    x = relu(conv(relu(conv(left))))
    x = layers.Add(name="add")([x, _conv("side", 3, 1)(right)])
    x = relu(_conv("join", 4, 3)(x))
    x = layers.GlobalAveragePooling2D(name="adaptive_avg_pool2d", keepdims=True)(x)
    x = layers.Dense(10, name="head")(layers.Flatten(name="flatten")(x))
    return keras.Model([left, right], x)


class Gated(nn.Module):
    """A squeeze-and-excite gate, activations of transformers, a normalization."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.act = nn.SiLU()
        self.squeeze = nn.AdaptiveAvgPool2d(1)
        self.excite = nn.Conv2d(8, 8, 1)
        self.gate = nn.Sigmoid()
        self.next = nn.Conv2d(8, 8, 3, padding=1)
        self.dense = nn.Linear(8, 16)
        self.gelu = nn.GELU()
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 10)
        self.softmax = nn.Softmax(dim=-1)

    def forward(self, x: Any) -> Any:
        x = self.act(self.stem(x))
        x = x * self.gate(self.excite(self.squeeze(x)))
        x = F.hardswish(self.next(x)).mean((2, 3))
        return self.softmax(self.head(self.norm(self.gelu(self.dense(x)))))


def gated() -> keras.Model:
    x = inputs = keras.Input((16, 16, 3), name="x")
    x = layers.Activation("silu", name="act")(_conv("stem", 8, 3)(x))
    gate = layers.GlobalAveragePooling2D(name="squeeze", keepdims=True)(x)
    gate = layers.Activation("sigmoid", name="gate")(_conv("excite", 8, 1)(gate))
    x = layers.Multiply(name="mul")([x, gate])
    x = layers.Activation("hard_silu", name="hardswish")(_conv("next", 8, 3)(x))
    x = layers.GlobalAveragePooling2D(name="mean")(x)
    x = layers.Activation("gelu", name="gelu")(layers.Dense(16, name="dense")(x))
    x = layers.Dense(10, name="head")(layers.LayerNormalization(name="norm")(x))
    return keras.Model(inputs, layers.Softmax(name="softmax")(x))


TWINS: dict[str, tuple[Callable[[], nn.Module], Callable[[], keras.Model]]] = {
    "residual": (Residual, residual),
    "inverted": (Inverted, inverted),
    "inception": (Inception, inception),
    "reused": (Reused, reused),
    "gated": (Gated, gated),
}


def images(network: str, count: int = 1) -> Any:
    """Return random images for a network of ``TWINS``.

    They are one tensor, or a tuple of two.
    """
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randn(count, 3, 16, 16, generator=generator) for _ in range(2)]
    return tuple(drawn) if network == "reused" else drawn[0]
