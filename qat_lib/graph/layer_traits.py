"""What Keras layers do to a tensor's range, for the planner and the cases."""

from __future__ import annotations

import math
from typing import Any

import keras
from keras import layers

from qat_lib.graph.roles import Role, keras_operators, layer_names, other_layers


def classes(role: Role, *more: Role) -> tuple[Any, ...]:
    """Return the Keras layer classes that have all of the roles."""
    return tuple(getattr(layers, name) for name in layer_names(role, *more))


IDENTITY = classes("identity")
IDENTITY_NAMES = other_layers("identity")
RANGE_PRESERVING = classes("range preserving")
WIDE_MAXIMA = classes("wide maximum")
CONVOLUTIONS = classes("convolution")
WEIGHTED = classes("weighted")
AVERAGE_POOLS = classes("average pool")
MAX_POOLS = tuple(x for x in classes("max pool") if x not in WIDE_MAXIMA)
"""Those with a window of a size of their own."""
MOVING_OPERATORS = keras_operators("range preserving") - {"Pad"} | {"Relu"}
"""Bare operations that keep a grid, whatever their arguments."""
WIDE_WINDOW = 16
"""Values from which on a window is wide. A percentile of 99.99 costs the maxima of 4 values
nothing, of 16 values 3 dB of the signal to the noise (normal and Laplace), of 576 values 17 to 21
dB."""


def is_identity(operation: Any) -> bool:
    """Whether the operation passes its one input on unchanged at inference."""
    if isinstance(operation, layers.Activation):
        return bool(operation.activation is keras.activations.linear)
    return isinstance(operation, IDENTITY) or type(operation).__name__ in IDENTITY_NAMES


def is_relu(operation: Any) -> bool:
    """Whether the operation is a plain ReLU, neither capped nor leaky."""
    # The layer, and what keras.activations.relu leaves in a graph.
    if type(operation).__name__ == "ReLU":
        return bool(
            operation.max_value is None and not operation.negative_slope and not operation.threshold
        )
    if isinstance(operation, layers.Activation):
        return bool(operation.activation is keras.activations.relu)
    return False


def is_wide_maximum(operation: Any) -> bool:
    """Whether each output is the greatest of many inputs, which a percentile would cut."""
    if isinstance(operation, MAX_POOLS):
        return bool(math.prod(operation.pool_size) >= WIDE_WINDOW)
    return isinstance(operation, WIDE_MAXIMA)


def is_zero_pad(operation: Any) -> bool:
    """Whether the operation is ``keras.ops.pad`` with zeros."""
    return type(operation).__name__ == "Pad" and operation.mode == "constant"


def preserves_range(operation: Any) -> bool:
    """Whether each output value is a value of the one input, or zero."""
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
