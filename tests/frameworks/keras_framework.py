"""Small models and operations of Keras; ``torch_framework`` has the same for PyTorch."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import qat_lib as api

__all__ = ["api"]


def loaders(x: np.ndarray, labels: np.ndarray, size: int) -> dict[str, Any]:
    """Return data in the framework's own forms."""
    return {
        "tensor": tf.constant(x),
        "loader": tf.data.Dataset.from_tensor_slices(x).batch(size),
        "loader of pairs": tf.data.Dataset.from_tensor_slices((x, labels)).batch(size),
    }


def quantizers(*names: str, **options: Any) -> Any:
    """Return a model of quantizers, one after another, on two values a sample."""
    x = y = keras.Input((2,), name="x")
    for name in names:
        y = api.TensorQuantizer(name=name, **options)(y)
    return keras.Model(x, y)


def two_inputs(form: Any = dict, *, shared: bool = False) -> Any:
    """Return a model of inputs ``a`` and ``b`` with quantizers ``qa`` and ``qb``, or one for both."""
    inputs = {name: keras.Input((2,), name=name) for name in "ab"}
    made = {name: api.TensorQuantizer(name=f"q{name}") for name in "ab"}
    outputs = [made["a" if shared else name](x) for name, x in inputs.items()]
    return keras.Model(inputs if form is dict else form(inputs.values()), outputs)


def linear() -> Any:
    """Return a model ``Linear`` in floating point."""
    x = keras.Input((2,))
    return keras.Model(x, layers.Dense(2)(x), name="Linear")


def samples(x: np.ndarray) -> Any:
    """Return images, whose channels come last, in the framework's layout."""
    return x


def network(**norm: Any) -> Any:
    """Return ``conv``, ``bn``, ``biased`` and ``logits`` on images of 8 x 8 x 3."""
    keras.utils.set_random_seed(1)
    x = keras.Input((8, 8, 3), name="image")
    y = layers.Conv2D(16, 3, use_bias=False, name="conv")(x)
    y = layers.BatchNormalization(name="bn", **norm)(y)
    y = layers.Conv2D(16, 3, activation="relu", name="biased")(layers.ReLU()(y))
    return keras.Model(x, layers.Dense(4, name="logits")(layers.GlobalAveragePooling2D()(y)))


def pooled_identity() -> Any:
    """Return a convolution ``conv`` with a weight of 1, and the mean over its outputs."""
    x = keras.Input((10, 10, 1))
    y = layers.Conv2D(1, 1, kernel_initializer="ones", name="conv")(x)
    return keras.Model(x, layers.GlobalAveragePooling2D()(y))


def odd_convolutions() -> Any:
    """Return ``shared``, called twice, and ``bare``, which has no bias."""
    x = keras.Input((8, 8, 3))
    shared = layers.Conv2D(3, 1, name="shared")
    return keras.Model(x, layers.Conv2D(4, 1, use_bias=False, name="bare")(shared(shared(x))))


def quantized_name(layer: str) -> str:
    """Return the name of a quantized layer."""
    return f"quant_{layer}"


def predict(model: Any, x: Any) -> np.ndarray:
    """Return the outputs."""
    return np.array(model(x, training=False))


def state(model: Any) -> dict[str, np.ndarray]:
    """Return copies of all variables."""
    return {variable.path: np.array(variable) for variable in model.variables}


def kind(name: str) -> str:
    """Return the kind of a variable in ``state``: ``bias``, ``mean`` or another."""
    return name.split("/")[-1].removeprefix("moving_")


def array(weight: Any) -> np.ndarray:
    """Return a copy of a weight."""
    return np.array(weight)


def assign(weight: Any, value: np.ndarray) -> None:
    """Set a weight."""
    weight.assign(value)


def export(model: Any, path: Path, x: Any) -> None:
    """Export to ONNX."""
    api.export_onnx(model, path)
