"""View of a quantized graph: layers, the tensors between them, and their Q/DQ pairs."""

from __future__ import annotations

from dataclasses import dataclass

from qatline.components.report.numbers import significant


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A Q/DQ pair: graph name, largest magnitude, signedness of its integers."""

    name: str
    amax: float | None
    unsigned: bool = False

    def range(self, digits: int = 3) -> str:
        """Return the range as ``±2.5`` or ``0…6``; empty if unknown."""
        if self.amax is None:
            return ""
        return f"{'0…' if self.unsigned else '±'}{significant(self.amax, digits)}"


@dataclass(frozen=True, kw_only=True)
class GraphNode:
    """A layer of the picture.

    Args:
        key: unique id.
        title: Keras layer, as derived from the node's name.
        kind: operation, such as ``Conv 3×3 /2 + ReLU``.
        precision: ``int8`` if all operands of its arithmetic are quantized, else ``float``; ``""``
            for inputs, outputs, and operations that only move data.
        weights: number of quantized ranges of its weight; 0 = not quantized.
        output: the pair on its output tensor, if any.
        names: names of its ONNX nodes.
        fused: layer with the fused kernel, by the fusion analysis.
    """

    key: str
    title: str
    kind: str
    precision: str = ""
    weights: int = 0
    output: Pair | None = None
    names: tuple[str, ...] = ()
    fused: str = ""


@dataclass(frozen=True, kw_only=True)
class GraphEdge:
    """A tensor from one layer to another; ``quantized`` if the reader uses its Q/DQ pair."""

    source: str
    target: str
    quantized: bool


@dataclass(frozen=True, kw_only=True)
class GraphView:
    """Nodes in topological order and the edges between them."""

    nodes: tuple[GraphNode, ...]
    edges: tuple[GraphEdge, ...]
