"""Wrappers of normalizations and activations, off by default, for use by cases."""

from __future__ import annotations

from keras import layers

from qat_lib.keras.wrappers.base import unweighted

BatchNormalizationQuantizeWrapper = unweighted(layers.BatchNormalization)
LayerNormalizationQuantizeWrapper = unweighted(layers.LayerNormalization)
GroupNormalizationQuantizeWrapper = unweighted(layers.GroupNormalization)
ActivationQuantizeWrapper = unweighted(layers.Activation)
ReLUQuantizeWrapper = unweighted(layers.ReLU)
