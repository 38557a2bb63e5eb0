"""From the name of an ONNX node back to the layer that it came from."""

from __future__ import annotations

from qat_lib.onnx_view.identity import guess_layer as keras_layer

__all__ = ["keras_layer"]
