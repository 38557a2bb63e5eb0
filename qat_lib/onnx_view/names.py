"""From the name of an ONNX node back to the layer that it came from."""

from __future__ import annotations

_QUANTIZED = "quant_"
_QUANTIZER = "_quantizer"


def keras_layer(node: str) -> str:
    """Return the Keras layer of a node, best effort.

    This library's exporter names nodes ``<layer>/<Op>``, with ``quant_`` in front of a quantized
    layer, and a tensor's quantizer ``<producing layer>_quantizer/QuantizeLinear``. PyTorch writes
    ``/layer1/conv1/Conv``: there the path to the module is the best name. A name without a slash is
    returned as it is.

    >>> keras_layer("quant_conv1/Conv"), keras_layer("relu_quantizer/QuantizeLinear")
    ('conv1', 'relu')
    >>> keras_layer("/layer1/conv1/Conv")
    'layer1/conv1'
    """
    if node.startswith("/"):
        return node.strip("/").rpartition("/")[0] or node.strip("/")
    layer = node.split("/", 1)[0]
    return layer.removeprefix(_QUANTIZED).removesuffix(_QUANTIZER) or layer
