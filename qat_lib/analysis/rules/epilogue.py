"""Output precision of weighted layers, and missed fusions of their kernels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from qat_lib.analysis.chains import Chain, gate_of, joins
from qat_lib.analysis.engine import PredictedEngine
from qat_lib.analysis.findings import Finding, Rule, Severity
from qat_lib.analysis.reads import Read, ends_in_float, float_reads
from qat_lib.onnx_view.graph import Node

V13 = Rule(
    "V13", "warning", "layer writes floating point and its Q becomes a separate kernel", "E", "E"
)
V14 = Rule("V14", "warning", "Q/DQ between a layer and its normalization or activation", "E")
H1 = Rule("H1", "info", "zero padding could be an attribute of the layer behind it", "E", "E")


def check_epilogue(engine: PredictedEngine) -> Iterator[Finding]:
    """Yield weighted layers with missed fusions, or with float output before a Q."""
    for chain in engine.chains.values():
        if chain.op.precision == "int8":
            yield from _check_output(engine, chain)
            yield from _check_cut(engine, chain)
            yield from _check_depthwise(engine, chain)
    for node in engine.flow.operators:
        yield from _check_padding(engine, node)


def _check_output(engine: PredictedEngine, chain: Chain) -> Iterator[Finding]:
    reads = engine.flow.readers(chain.end)
    floats = float_reads(reads)
    if len(floats) == len(reads) or chain.output_scale(engine.flow) is not None:
        return
    severity, why, advice = _why_float(chain, floats)
    layer = chain.op.node.keras_layer
    yield V13.at(
        chain.nodes[-1],
        message=f"{layer!r} computes in INT8 but writes floating point, because {why}: the Q "
        "behind it is a separate kernel.",
        advice=advice,
        severity=severity,
        layer=layer,
    )


def _why_float(chain: Chain, floats: Sequence[Read]) -> tuple[Severity, str, str]:
    """Return severity, cause and advice for a chain's floating-point output."""
    if chain.residual is not None and chain.residual.scale is None:
        return (
            "info",
            "the Add in its kernel has a floating-point residual (V15)",
            "Quantize the residual; then this Q moves into the kernel too.",
        )
    if floats and chain.residual is not None:
        return (
            "info",
            "a reader of the Add in its kernel is not quantized (V16)",
            "Quantize all readers; then this Q moves into the kernel too.",
        )
    if floats:
        found = []
        for read in floats:
            found.append("the graph's output" if read.node is None else repr(read.node.keras_layer))
        names = " and ".join(dict.fromkeys(found))
        why = f"{names} {'read' if len(floats) > 1 else 'reads'} it in floating point"
        if all(map(ends_in_float, floats)):
            return "info", why, "No other placement avoids this: that reader has no INT8 form."
        return "warning", why, f"Quantize the input of {names} with the same quantizer."
    return (
        "warning",
        "its readers need different scales",
        "Give its output one quantizer that all consumers share.",
    )


def _check_cut(engine: PredictedEngine, chain: Chain) -> Iterator[Finding]:
    reads = engine.flow.readers(chain.end)
    nodes = [read.node for read in reads if read.node is not None and read.explicit]
    # A float reader keeps the kernels apart in any case.
    if not nodes or len(nodes) < len(reads) or chain.add is not None:
        return
    if len(nodes) == 1 and joins(engine.graph, nodes[0]):
        follower = nodes[0]
    elif not chain.op.depthwise and (gate := gate_of(engine.flow, reads)):
        follower = gate[-1]
    else:
        return
    layer = chain.op.node.keras_layer
    yield V14.at(
        follower,
        message=f"Q/DQ between {layer!r} and its {follower.op} keep them from being one kernel.",
        advice=f"Remove the quantizer of the output of {layer!r}; quantize the output of the "
        f"{follower.op} instead.",
        layer=layer,
    )


def _check_depthwise(engine: PredictedEngine, chain: Chain) -> Iterator[Finding]:
    """Yield a depthwise layer before x * gate(x), without a fused kernel."""
    reads = engine.flow.readers(chain.end)
    if not chain.op.depthwise or chain.add is not None or len(float_reads(reads)) < len(reads):
        return
    gate = gate_of(engine.flow, reads)
    if gate:
        layer = chain.op.node.keras_layer
        operators = " and ".join(dict.fromkeys(node.op for node in gate))
        yield V13.at(
            chain.nodes[-1],
            message=f"{layer!r} computes in INT8 but writes floating point: a depthwise kernel "
            f"does not take the {operators} behind it (SiLU and the like).",
            advice="No placement avoids this. If the architecture is yours, put a ReLU behind "
            f"{layer!r}.",
            severity="info",
            layer=layer,
        )


def _check_padding(engine: PredictedEngine, node: Node) -> Iterator[Finding]:
    if (
        node.op != "Pad"
        or not engine.graph.moves_values(node)
        or not _pads_image_only(engine, node)
    ):
        return
    readers = set()
    for read in engine.flow.output_reads(node):
        readers.add(read.node.op if read.node is not None else "the graph's output")
    if readers and readers <= {"Conv", "AveragePool"}:
        yield H1.at(
            node,
            message=f"{node.keras_layer!r} pads with zeros in a separate kernel.",
            advice="Merge it into the pads attribute of the layer behind it.",
        )


def _pads_image_only(engine: PredictedEngine, node: Node) -> bool:
    given = engine.graph.value(node.input(1)) if node.input(1) else node.integers("pads")
    if given is None or node.input(3):
        return False
    pads = list(map(int, given))
    rank = len(pads) // 2
    # Pads lists all begins, then all ends; the first two of each are batch and channels.
    return not any((*pads[:2], *pads[rank : rank + 2]))
