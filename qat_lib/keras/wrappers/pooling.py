"""Wrappers of pooling layers.

Average pooling is on by default; max pooling is off, because it preserves the range.
"""

from __future__ import annotations

from keras import layers

from qat_lib.keras.wrappers.base import unweighted

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
