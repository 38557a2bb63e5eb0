"""What ``qat_lib.trace_tensor`` returns."""

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
        keras_layer: the Keras layer that it stands for.
        predicted: precision that the analysis predicts; empty where it says nothing about the node.
        built: precision that it has in the engine; empty where the engine does not show it.
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
        entries: its plan entries, several where tied tensors share it; empty without a plan.
        nodes: names of its Q and DQ nodes; empty where the file has none.
        scale: scale in the file, one value or one a channel, a folded normalization included; empty
            where it is no constant.
        amax: range, the largest magnitude that the integers represent, one value for each scale.
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
    """What is known about one tensor.

    Attributes:
        name: what was asked for.
        keras_layers: the Keras layer; several where a quantizer serves the outputs of several.
        quantizers: the quantizers of the layer's output and weights, or the one asked for.
        nodes: the layer's ONNX nodes, without Q and DQ.
        skipped: what the plan says of a layer that it does not quantize.
        engine_layers: layers of the engine that run any of these nodes.
        findings: what the analysis says about the layer or the quantizers.
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
