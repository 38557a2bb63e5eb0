"""Wrappers of merging, padding and resizing layers, all off by default."""

from __future__ import annotations

from typing import ClassVar

from keras import layers

from qat_lib.keras.wrappers.base import NonWeightedBaseQuantizeWrapper, unweighted

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
