"""Map an engine's layers to Keras layers and quantizers."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from qat_lib.engines.values import EngineLayer
from qat_lib.onnx_view.identity import Identities


def identify_layers(
    layers: Iterable[EngineLayer], identities: Identities, weighted: Collection[str]
) -> tuple[EngineLayer, ...]:
    """Return ``layers`` with Keras layers and quantizers, from their ONNX nodes.

    Args:
        layers: layers reported by a backend.
        identities: Keras layers and quantizers of the ONNX nodes.
        weighted: ONNX nodes with constant weights.
    """
    return tuple(_identify(layer, identities, frozenset(weighted)) for layer in layers)


def _identify(layer: EngineLayer, identities: Identities, weighted: frozenset[str]) -> EngineLayer:
    node = _main_node(layer.nodes, identities, weighted)
    quantizers = (identities.quantizers.get(name) for name in layer.nodes)
    return replace(
        layer,
        keras_layer="" if node is None else identities.keras_layer(node),
        quantizers=tuple(dict.fromkeys(filter(None, quantizers))),
    )


def _main_node(
    nodes: tuple[str, ...], identities: Identities, weighted: frozenset[str]
) -> str | None:
    """Return the main node of a layer: with weights, otherwise not a Q or DQ."""
    for node in nodes:
        if node in weighted:
            return node
    for node in nodes:
        if node not in identities.quantizers:
            return node
    return nodes[0] if nodes else None
