"""What the planner and the cases need to know about Keras layers: which keep a tensor's range, which are nothing."""

from __future__ import annotations

import math
from typing import Any

import keras
from keras import layers

# Layers that are the identity at inference: tensors on both sides of them are one tensor.
IDENTITY = (
    layers.Identity,
    layers.Dropout,
    layers.SpatialDropout1D,
    layers.SpatialDropout2D,
    layers.SpatialDropout3D,
    layers.GaussianDropout,
    layers.GaussianNoise,
    layers.AlphaDropout,
    layers.ActivityRegularization,
    layers.AugMix,
    layers.CutMix,
    layers.MixUp,
    layers.RandAugment,
    layers.RandomBrightness,
    layers.RandomColorDegeneration,
    layers.RandomColorJitter,
    layers.RandomContrast,
    layers.RandomElasticTransform,
    layers.RandomErasing,
    layers.RandomFlip,
    layers.RandomGaussianBlur,
    layers.RandomGrayscale,
    layers.RandomHue,
    layers.RandomInvert,
    layers.RandomPerspective,
    layers.RandomPosterization,
    layers.RandomRotation,
    layers.RandomSaturation,
    layers.RandomSharpness,
    layers.RandomShear,
    layers.RandomTranslation,
    layers.RandomZoom,
)

# Layers whose outputs are values of their input, or zero: a quantized tensor stays on its grid.
RANGE_PRESERVING = (
    layers.MaxPooling1D,
    layers.MaxPooling2D,
    layers.MaxPooling3D,
    layers.GlobalMaxPooling1D,
    layers.GlobalMaxPooling2D,
    layers.GlobalMaxPooling3D,
    layers.AdaptiveMaxPooling1D,
    layers.AdaptiveMaxPooling2D,
    layers.AdaptiveMaxPooling3D,
    layers.Flatten,
    layers.Reshape,
    layers.Permute,
    layers.RepeatVector,
    layers.ZeroPadding1D,
    layers.ZeroPadding2D,
    layers.ZeroPadding3D,
    layers.Cropping1D,
    layers.Cropping2D,
    layers.Cropping3D,
    layers.UpSampling1D,
    layers.UpSampling3D,
)

# Layers whose outputs are each the greatest of many values.
WIDE_MAXIMA = (
    layers.GlobalMaxPooling1D,
    layers.GlobalMaxPooling2D,
    layers.GlobalMaxPooling3D,
    layers.AdaptiveMaxPooling1D,
    layers.AdaptiveMaxPooling2D,
    layers.AdaptiveMaxPooling3D,
)
WIDE_WINDOW = 16
"""Values from which on a window is wide. A percentile of 99.99 costs the maxima of 4 values
nothing, of 16 values 3 dB of the signal to the noise (normal and Laplace), of 576 values 17 to 21
dB."""

# Bare operations (keras.ops) that only move values.
MOVING_OPERATORS = (
    "Reshape",
    "Transpose",
    "Squeeze",
    "ExpandDims",
    "GetItem",
    "Relu",
    "Flip",
    "Tile",
    "Repeat",
)

CONVOLUTIONS = (
    layers.Conv1D,
    layers.Conv2D,
    layers.Conv3D,
    layers.DepthwiseConv1D,
    layers.DepthwiseConv2D,
    layers.SeparableConv1D,
    layers.SeparableConv2D,
)
MATMULS = (layers.Dense, layers.EinsumDense)
WEIGHTED = CONVOLUTIONS + MATMULS
AVERAGE_POOLS = (
    layers.AveragePooling1D,
    layers.AveragePooling2D,
    layers.AveragePooling3D,
    layers.GlobalAveragePooling1D,
    layers.GlobalAveragePooling2D,
    layers.GlobalAveragePooling3D,
    layers.AdaptiveAveragePooling1D,
    layers.AdaptiveAveragePooling2D,
    layers.AdaptiveAveragePooling3D,
)
MAX_POOLS = (layers.MaxPooling1D, layers.MaxPooling2D, layers.MaxPooling3D)


def is_identity(operation: Any) -> bool:
    """Whether the operation passes its one input on unchanged at inference."""
    if isinstance(operation, layers.Activation):
        return bool(operation.activation is keras.activations.linear)
    return isinstance(operation, IDENTITY) or type(operation).__name__ in (
        "StochasticDepth",
        "DropConnect",
    )


def is_relu(operation: Any) -> bool:
    """Whether the operation is a plain ReLU, which keeps a symmetric grid; a capped or leaky one does not."""
    # The layer, and what keras.activations.relu leaves in a graph.
    if type(operation).__name__ == "ReLU":
        return bool(
            operation.max_value is None and not operation.negative_slope and not operation.threshold
        )
    if isinstance(operation, layers.Activation):
        return bool(operation.activation is keras.activations.relu)
    return False


def is_wide_maximum(operation: Any) -> bool:
    """Whether each output is the greatest of many inputs, so that these are mostly values which a percentile cuts."""
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
