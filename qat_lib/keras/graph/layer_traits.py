"""Effects of Keras layers and operations on values, from class and configuration."""

from __future__ import annotations

import math
from typing import Any

import keras
from keras import layers

from qat_lib.graph.roles import (
    Role,
    activation_functions,
    keras_operators,
    layer_names,
    other_layers,
    rows,
)
from qat_lib.graph.traits import WIDE_WINDOW
from qat_lib.keras.quantizers.channel_relu import ChannelReLU


def classes(role: Role, *more: Role) -> tuple[Any, ...]:
    """Return the Keras layer classes with all of the roles."""
    return tuple(getattr(layers, name) for name in layer_names(role, *more))


IDENTITY = classes("identity")
IDENTITY_NAMES = other_layers("identity")
RANGE_PRESERVING = classes("range preserving")
WIDE_MAXIMA = classes("wide maximum")
WEIGHTED = classes("weighted")
TRANSPOSED = classes("transposed")
DEPTHWISE = classes("depthwise")
AFFINE = classes("affine")
AFFINE_NAMES = other_layers("affine")
AVERAGE_POOLS = classes("average pool")
MAX_POOLS = tuple(x for x in classes("max pool") if x not in WIDE_MAXIMA)
"""Max poolings with a window size, unlike global ones."""
MOVING_OPERATORS = keras_operators("range preserving") - {"Pad"} | {"Relu"}
"""Bare operations that preserve the grid of values, regardless of their arguments."""
FUNCTIONS = {
    operator: function
    for row in rows("activation")
    for operator, function in zip(row.operators, row.functions, strict=True)
}
"""Bare operation -> its activation function."""
NON_NEGATIVE = activation_functions("non-negative")
NON_NEGATIVE_OPERATORS = keras_operators("non-negative") - FUNCTIONS.keys()
"""Bare operations with non-negative outputs, except activation functions."""
AFFINE_OPERATORS = keras_operators("arithmetic")
SMOOTH = ("bilinear", "nearest")
"""Interpolations within the range of their inputs; cubic interpolation overshoots."""


def is_identity(operation: Any) -> bool:
    """Whether the operation returns its single input unchanged in inference."""
    if isinstance(operation, layers.Activation):
        return bool(operation.activation is keras.activations.linear)
    return isinstance(operation, IDENTITY) or type(operation).__name__ in IDENTITY_NAMES


def is_relu(operation: Any) -> bool:
    """Whether the operation is a plain ReLU, neither capped nor leaky."""
    # By name: matches the layer, and the operation of keras.activations.relu in a graph.
    if type(operation).__name__ == "ReLU":
        return bool(
            operation.max_value is None and not operation.negative_slope and not operation.threshold
        )
    if isinstance(operation, layers.Activation):
        return bool(operation.activation is keras.activations.relu)
    return False


def is_wide_maximum(operation: Any) -> bool:
    """Whether each output is the maximum of many inputs, so that a percentile would clip it."""
    if isinstance(operation, MAX_POOLS):
        return bool(math.prod(operation.pool_size) >= WIDE_WINDOW)
    return isinstance(operation, WIDE_MAXIMA)


def is_zero_pad(operation: Any) -> bool:
    """Whether the operation is ``keras.ops.pad`` with zeros."""
    return type(operation).__name__ == "Pad" and operation.mode == "constant"


def preserves_range(operation: Any) -> bool:
    """Whether each output is a value of the single input, or zero."""
    if isinstance(operation, layers.UpSampling2D):
        return bool(operation.interpolation == "nearest")
    if isinstance(operation, layers.Resizing):
        return bool(operation.interpolation == "nearest" and not operation.antialias)
    if not isinstance(operation, layers.Layer):
        return (
            is_zero_pad(operation)
            or is_relu(operation)
            or type(operation).__name__ in MOVING_OPERATORS
        )
    return isinstance(operation, RANGE_PRESERVING) or is_relu(operation) or is_identity(operation)


def activation_of(operation: Any) -> str | None:
    """Return the activation function of the operation, such as ``"relu"``, or None."""
    if isinstance(operation, layers.Activation):
        return getattr(operation.activation, "__name__", None)
    if isinstance(operation, ChannelReLU):
        return "relu6"
    # By name: matches the layer, and the operation of keras.activations.relu in a graph.
    if type(operation).__name__ == "ReLU":
        is_bounded = operation.max_value is not None
        if operation.negative_slope:
            return None if is_bounded else "leaky_relu"  # no kernel supports both
        return "relu6" if is_bounded else "relu"
    if isinstance(operation, layers.LeakyReLU):
        return "leaky_relu"
    if isinstance(operation, layers.ELU):
        return "elu"
    if isinstance(operation, layers.Layer):
        return None
    return FUNCTIONS.get(type(operation).__name__)


def own_activation_of(operation: Any) -> str | None:
    """Return the built-in activation function of a weighted layer, or None."""
    if not isinstance(operation, WEIGHTED):
        return None  # a recurrent layer multiplies after its activation
    own = operation.activation
    if own is None or own is keras.activations.linear:
        return None
    return str(getattr(own, "__name__", type(own).__name__))


def is_affine(operation: Any, inputs: int) -> bool:
    """Whether the operation scales or shifts its single input by constants."""
    if isinstance(operation, AFFINE) or type(operation).__name__ in AFFINE_NAMES:
        return True
    is_operator = not isinstance(operation, layers.Layer)
    return is_operator and inputs == 1 and type(operation).__name__ in AFFINE_OPERATORS


def is_depthwise(operation: Any) -> bool:
    """Whether the operation convolves each channel separately."""
    if not isinstance(operation, WEIGHTED):
        return False
    groups = getattr(operation, "groups", 1)
    is_grouped = groups > 1 and groups == getattr(operation, "filters", 0)
    return isinstance(operation, DEPTHWISE) or is_grouped


def is_never_negative(operation: Any) -> bool:
    """Whether the operation has non-negative outputs for any input."""
    if isinstance(operation, layers.Softmax):
        return True
    is_operator = type(operation).__name__ in NON_NEGATIVE_OPERATORS
    return is_operator or activation_of(operation) in NON_NEGATIVE


def is_smooth(operation: Any) -> bool:
    """Whether the outputs are weighted means of neighbouring values."""
    if isinstance(operation, layers.UpSampling2D | layers.Resizing):
        return operation.interpolation in SMOOTH
    return isinstance(operation, AVERAGE_POOLS)
