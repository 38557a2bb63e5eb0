"""Wrappers of convolutions.

Transposed convolutions are off by default, because TensorRT does not run them reliably in INT8.
"""

from __future__ import annotations

from keras import layers

from qat_lib.keras.wrappers.weighted import weighted

Conv1DQuantizeWrapper = weighted(layers.Conv1D)
Conv2DQuantizeWrapper = weighted(layers.Conv2D)
Conv3DQuantizeWrapper = weighted(layers.Conv3D)
DepthwiseConv1DQuantizeWrapper = weighted(layers.DepthwiseConv1D, kernel=(-2, -1))
DepthwiseConv2DQuantizeWrapper = weighted(layers.DepthwiseConv2D, kernel=(-2, -1))
Conv1DTransposeQuantizeWrapper = weighted(layers.Conv1DTranspose, default=False, kernel=(-2,))
Conv2DTransposeQuantizeWrapper = weighted(layers.Conv2DTranspose, default=False, kernel=(-2,))
Conv3DTransposeQuantizeWrapper = weighted(layers.Conv3DTranspose, default=False, kernel=(-2,))
