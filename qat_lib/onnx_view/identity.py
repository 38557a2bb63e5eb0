"""Keras layers and quantizers of the nodes in an ONNX file.

The export records both in the file. For other nodes, from an older file or another producer, the
identity is guessed from the node's name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from qat_lib.graph.roles import PAIR
from qat_lib.onnx_view.metadata import damaged, read_object

_KEY = "nodes"


@dataclass(frozen=True, kw_only=True)
class Identities:
    """Layers and quantizers of the nodes of one ONNX file.

    Attributes:
        layers: node -> Keras layer of the float model, named as in plan and reports; for a Q or DQ
            node, the layer of the quantized output or weight.
        quantizers: Q or DQ node -> name of its quantizer, as in the plan.
    """

    layers: Mapping[str, str] = field(default_factory=dict)
    quantizers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of_metadata(cls, metadata: Mapping[str, str]) -> Identities:
        """Read the entry of ``to_metadata``; empty if it is absent.

        Args:
            metadata: from ``qat_lib.onnx_view.metadata.read_metadata``.

        Raises:
            ExportError: an entry is damaged.
        """
        layers: dict[str, str] = {}
        quantizers: dict[str, str] = {}
        for layer, by_quantizer in read_object(metadata, _KEY).items():
            for quantizer, nodes in _mapping(by_quantizer).items():
                for node in _names(nodes):
                    layers[node] = layer
                    if quantizer:
                        quantizers[node] = quantizer
        return cls(layers=layers, quantizers=quantizers)

    def to_metadata(self) -> dict[str, str]:
        """Return the metadata entry: JSON, layer -> quantizer (empty: none) -> nodes."""
        # Grouped by layer and quantizer: their names would otherwise repeat for every node.
        content: dict[str, dict[str, list[str]]] = {}
        for node, layer in self.layers.items():
            by_quantizer = content.setdefault(layer, {})
            by_quantizer.setdefault(self.quantizers.get(node, ""), []).append(node)
        return {_KEY: json.dumps(content, separators=(",", ":"))}

    def keras_layer(self, node: str) -> str:
        """Return the Keras layer of a node."""
        return self.layers.get(node) or guess_layer(node)

    def quantizer(self, node: str, op: str) -> str:
        """Return the quantizer of a node with operator ``op``; empty unless it is a Q or DQ."""
        if op not in PAIR:
            return ""
        return self.quantizers.get(node) or guess_quantizer(node)

    def layers_of(self, quantizer: str) -> tuple[str, ...]:
        """Return the Keras layers with outputs or weights that a quantizer quantizes."""
        nodes = (node for node, name in self.quantizers.items() if name == quantizer)
        return tuple(dict.fromkeys(map(self.keras_layer, nodes)))


def guess_layer(node: str) -> str:
    """Return the Keras layer in the name of an unrecorded node.

    Older exports of this library name nodes ``<layer>/<Op>``, with ``quant_`` in front of a
    quantized layer, and a tensor's quantizer ``<producing layer>_quantizer/QuantizeLinear``.
    PyTorch writes ``/layer1/conv1/Conv``: the path of the module is the best name. A name without a
    slash is returned unchanged.

    >>> guess_layer("quant_conv1/Conv"), guess_layer("relu_quantizer/QuantizeLinear")
    ('conv1', 'relu')
    >>> guess_layer("/layer1/conv1/Conv")
    'layer1/conv1'
    """
    if node.startswith("/"):
        return node.strip("/").rpartition("/")[0] or node.strip("/")
    layer = node.split("/", 1)[0]
    return layer.removeprefix("quant_").removesuffix("_quantizer") or layer


def guess_quantizer(node: str) -> str:
    """Guess the quantizer of a Q or DQ node from its name.

    >>> guess_quantizer("conv1_kernel_quantizer/DequantizeLinear")
    'conv1_kernel_quantizer'
    """
    return node.rpartition("/")[0]


def _mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise damaged(_KEY, "nodes by layer and quantizer")
    return value


def _names(value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise damaged(_KEY, "nodes by layer and quantizer")
    return value
