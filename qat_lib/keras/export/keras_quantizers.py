"""Quantizers of a Keras model, as read by the export."""

from __future__ import annotations

from typing import Any

from qat_lib.export.ranges import RangeOwner
from qat_lib.keras.structure import layers_of


def built_quantizers(model: Any) -> list[RangeOwner]:
    """Return the built quantizers of a Keras model, including those inside wrappers."""
    from qat_lib.keras.quantizers import TensorQuantizer

    layers = layers_of(model)
    return [layer for layer in layers if isinstance(layer, TensorQuantizer) and layer.built]
