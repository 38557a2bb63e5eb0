"""Result of ``qat_lib.trace_tensor``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qat_lib.analysis.findings import Finding
    from qat_lib.core.plan import QuantizerEntry, SkippedLayer
    from qat_lib.engines.values import EngineLayer


@dataclass(frozen=True, kw_only=True)
class NodeTrace:
    """One ONNX node.

    Attributes:
        name: its name.
        op: operator.
        keras_layer: the corresponding Keras layer.
        predicted: precision predicted by the analysis; empty without a prediction for the node.
        built: precision in the engine; empty if the engine does not report it.
    """

    name: str
    op: str
    keras_layer: str
    predicted: str = ""
    built: str = ""


@dataclass(frozen=True, kw_only=True)
class QuantizerTrace:
    """One quantizer.

    Attributes:
        name: its name, in Keras, in the plan and in the ONNX file.
        entries: its plan entries, several for tied tensors; empty without a plan.
        nodes: names of its Q and DQ nodes; empty if the file has none.
        scale: scale in the file, one value or one per channel, including a folded normalization;
            empty if not constant.
        amax: range, the largest magnitude of the integers, one value for each scale.
        readers: ONNX nodes that read the quantized tensor.
    """

    name: str
    entries: tuple[QuantizerEntry, ...] = ()
    nodes: tuple[str, ...] = ()
    scale: tuple[float, ...] = ()
    amax: tuple[float, ...] = ()
    readers: tuple[NodeTrace, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TensorTrace:
    """Plan entries, ONNX nodes, engine layers and findings of one tensor.

    Attributes:
        name: the requested name.
        keras_layers: the Keras layer; several for a quantizer shared by several outputs.
        quantizers: quantizers of the layer's output and weights, or the requested quantizer.
        nodes: ONNX nodes of the layer, without Q and DQ.
        skipped: the plan's entries about unquantized layers.
        engine_layers: engine layers with any of these nodes.
        findings: findings about the layer or the quantizers.
    """

    name: str
    keras_layers: tuple[str, ...]
    quantizers: tuple[QuantizerTrace, ...] = ()
    nodes: tuple[NodeTrace, ...] = ()
    skipped: tuple[SkippedLayer, ...] = ()
    engine_layers: tuple[EngineLayer, ...] = ()
    findings: tuple[Finding, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the trace as JSON types."""
        return asdict(self)

    def __str__(self) -> str:
        """Return the trace as indented lines."""
        lines = [f"{self.name}: Keras layer {', '.join(self.keras_layers)}"]
        for skipped in self.skipped:
            lines.append(f"  not quantized by the plan: {skipped.reason} ({skipped.detail})")
        for node in self.nodes:
            lines.append(f"  node {_described(node)}")
        for quantizer in self.quantizers:
            lines += _quantizer_lines(quantizer)
        for layer in self.engine_layers:
            lines.append(f"  engine layer {layer.name}: {layer.kind}, {layer.precision}")
        for finding in self.findings:
            lines.append(f"  finding {finding}")
        return "\n".join(lines)


def _quantizer_lines(quantizer: QuantizerTrace) -> Iterator[str]:
    yield f"  quantizer {quantizer.name}"
    for entry in quantizer.entries:
        why = f": {entry.reason}" if entry.reason else ""
        yield f"    plan: {entry.kind} {entry.tensor}, {entry.num_bits} bits{why}"
    if quantizer.scale:
        yield f"    scale {_spread(quantizer.scale)}, range {_spread(quantizer.amax)}"
    yield f"    nodes: {', '.join(quantizer.nodes) or 'none in the file'}"
    for node in quantizer.readers:
        yield f"    read by {_described(node)}"


def _described(node: NodeTrace) -> str:
    facts = []
    if node.predicted:
        facts.append(f"predicted {node.predicted}")
    if node.built:
        facts.append(f"built {node.built}")
    return f"{node.name} ({', '.join(facts)})" if facts else node.name


def _spread(values: Sequence[float]) -> str:
    if len(values) == 1:
        return f"{values[0]:.6g}"
    return f"{min(values):.6g} to {max(values):.6g} in {len(values)} channels"
