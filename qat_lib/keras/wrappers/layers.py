"""Wrappers of single layers of Keras.

Layers with weights and average pooling are on by default. Off by default, for use by cases: merging,
padding, resizing, normalization and activation; max pooling, because it preserves the range; and
transposed convolutions, because TensorRT does not run them reliably in INT8.
"""

from __future__ import annotations

from typing import ClassVar

from keras import layers

from qat_lib.keras.wrappers.base import NonWeightedBaseQuantizeWrapper, unweighted
from qat_lib.keras.wrappers.weighted import weighted

Conv1DQuantizeWrapper = weighted(layers.Conv1D)
Conv2DQuantizeWrapper = weighted(layers.Conv2D)
Conv3DQuantizeWrapper = weighted(layers.Conv3D)
DepthwiseConv1DQuantizeWrapper = weighted(layers.DepthwiseConv1D, kernel=(-2, -1))
DepthwiseConv2DQuantizeWrapper = weighted(layers.DepthwiseConv2D, kernel=(-2, -1))
Conv1DTransposeQuantizeWrapper = weighted(layers.Conv1DTranspose, default=False, kernel=(-2,))
Conv2DTransposeQuantizeWrapper = weighted(layers.Conv2DTranspose, default=False, kernel=(-2,))
Conv3DTransposeQuantizeWrapper = weighted(layers.Conv3DTranspose, default=False, kernel=(-2,))


DenseQuantizeWrapper = weighted(layers.Dense)
EmbeddingQuantizeWrapper = weighted(layers.Embedding, default=False, embeddings=None)


AveragePooling1DQuantizeWrapper = unweighted(layers.AveragePooling1D, default=True)
AveragePooling2DQuantizeWrapper = unweighted(layers.AveragePooling2D, default=True)
AveragePooling3DQuantizeWrapper = unweighted(layers.AveragePooling3D, default=True)
GlobalAveragePooling1DQuantizeWrapper = unweighted(layers.GlobalAveragePooling1D, default=True)
GlobalAveragePooling2DQuantizeWrapper = unweighted(layers.GlobalAveragePooling2D, default=True)
GlobalAveragePooling3DQuantizeWrapper = unweighted(layers.GlobalAveragePooling3D, default=True)
MaxPooling1DQuantizeWrapper = unweighted(layers.MaxPooling1D)
MaxPooling2DQuantizeWrapper = unweighted(layers.MaxPooling2D)
MaxPooling3DQuantizeWrapper = unweighted(layers.MaxPooling3D)
GlobalMaxPooling1DQuantizeWrapper = unweighted(layers.GlobalMaxPooling1D)
GlobalMaxPooling2DQuantizeWrapper = unweighted(layers.GlobalMaxPooling2D)
GlobalMaxPooling3DQuantizeWrapper = unweighted(layers.GlobalMaxPooling3D)
AdaptiveAveragePooling1DQuantizeWrapper = unweighted(layers.AdaptiveAveragePooling1D, default=True)
AdaptiveAveragePooling2DQuantizeWrapper = unweighted(layers.AdaptiveAveragePooling2D, default=True)
AdaptiveAveragePooling3DQuantizeWrapper = unweighted(layers.AdaptiveAveragePooling3D, default=True)
AdaptiveMaxPooling1DQuantizeWrapper = unweighted(layers.AdaptiveMaxPooling1D)
AdaptiveMaxPooling2DQuantizeWrapper = unweighted(layers.AdaptiveMaxPooling2D)
AdaptiveMaxPooling3DQuantizeWrapper = unweighted(layers.AdaptiveMaxPooling3D)


BatchNormalizationQuantizeWrapper = unweighted(layers.BatchNormalization)
LayerNormalizationQuantizeWrapper = unweighted(layers.LayerNormalization)
GroupNormalizationQuantizeWrapper = unweighted(layers.GroupNormalization)
ActivationQuantizeWrapper = unweighted(layers.Activation)
ReLUQuantizeWrapper = unweighted(layers.ReLU)


AddQuantizeWrapper = unweighted(layers.Add)
SubtractQuantizeWrapper = unweighted(layers.Subtract)
MultiplyQuantizeWrapper = unweighted(layers.Multiply)
AverageQuantizeWrapper = unweighted(layers.Average)
MaximumQuantizeWrapper = unweighted(layers.Maximum)
MinimumQuantizeWrapper = unweighted(layers.Minimum)
ConcatenateQuantizeWrapper = unweighted(layers.Concatenate)
UpSampling1DQuantizeWrapper = unweighted(layers.UpSampling1D)
UpSampling2DQuantizeWrapper = unweighted(layers.UpSampling2D)
UpSampling3DQuantizeWrapper = unweighted(layers.UpSampling3D)
ZeroPadding1DQuantizeWrapper = unweighted(layers.ZeroPadding1D)
ZeroPadding2DQuantizeWrapper = unweighted(layers.ZeroPadding2D)
ZeroPadding3DQuantizeWrapper = unweighted(layers.ZeroPadding3D)
ResizingQuantizeWrapper = unweighted(layers.Resizing)


class CustomScaleLayerQuantizeWrapper(NonWeightedBaseQuantizeWrapper):
    """Quantize the inputs of the scaled residual Add of InceptionResNetV2, a private class."""

    default_quantize_input: ClassVar[bool] = False
