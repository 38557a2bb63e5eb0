"""What happens behind a weighted layer: its output's precision and what keeps its kernel short (V13, V14, H1)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from qat_lib.analysis.chains import Chain, gate_of, joins
from qat_lib.analysis.engine import FLOAT_ONLY, PredictedEngine
from qat_lib.analysis.findings import Finding, Severity, make_finding
from qat_lib.analysis.flow import Read
from qat_lib.analysis.propagation import is_mover
from qat_lib.onnx_view.graph import Node
from qat_lib.onnx_view.names import keras_layer


def check_epilogues(engine: PredictedEngine) -> Iterator[Finding]:
    """Yield weighted layers that write floating point although a Q follows, and kernels that Q/DQ cut short."""
    for chain in engine.chains.values():
        if chain.op.precision == "int8":
            yield from _check_output(engine, chain)
            yield from _check_cut(engine, chain)
            yield from _check_depthwise(engine, chain)
    for node in engine.flow.operators:
        yield from _check_padding(engine, node)


def _check_output(engine: PredictedEngine, chain: Chain) -> Iterator[Finding]:
    reads = engine.flow.readers(chain.end)
    if chain.output_scale(engine.flow) is not None or not any(
        read.scale is not None for read in reads
    ):
        return
    layer = keras_layer(chain.op.node.name)
    floats = [read for read in reads if read.scale is None]
    severity: Severity = "warning"
    if chain.residual is not None and chain.residual.scale is None:
        why, severity = "the Add in its kernel has a floating-point residual (V15)", "info"
        advice = "Quantize the residual; then this Q moves into the kernel too."
    elif floats and chain.residual is not None:
        why, severity = "not everything that reads the Add in its kernel is quantized (V16)", "info"
        advice = "Quantize what reads it; then this Q moves into the kernel too."
    elif floats:
        names = _names(floats)
        why = (
            f"{names} read it in floating point"
            if len(floats) > 1
            else f"{names} reads it in floating point"
        )
        advice = f"Quantize the input of {names} with the same quantizer."
        if all(read.node is None or read.node.op in FLOAT_ONLY for read in floats):
            severity, advice = (
                "info",
                "No other placement avoids this: that reader has no INT8 form.",
            )
    else:
        why, advice = (
            "its readers want different scales",
            "Give its output one quantizer that all consumers share.",
        )
    yield make_finding(
        "V13",
        chain.nodes[-1].name,
        f"{layer!r} computes in INT8 but writes floating point, because {why}: the Q behind it is a kernel of its own.",
        advice,
        "E",
        rule="E",
        severity=severity,
        keras_layer=layer,
    )


def _names(reads: Sequence[Read]) -> str:
    found = dict.fromkeys(
        "the graph's output" if read.node is None else repr(keras_layer(read.node.name))
        for read in reads
    )
    return " and ".join(found)


def _check_cut(engine: PredictedEngine, chain: Chain) -> Iterator[Finding]:
    reads = engine.flow.readers(chain.end)
    if (
        not reads
        or chain.add is not None
        or not all(read.explicit and read.node is not None for read in reads)
    ):
        return
    nodes = [read.node for read in reads if read.node is not None]
    if len(nodes) == 1 and joins(engine.graph, nodes[0]):
        follower = nodes[0]
    elif not chain.op.depthwise and (gate := gate_of(engine.flow, reads)):
        follower = gate[-1]
    else:
        return
    layer = keras_layer(chain.op.node.name)
    yield make_finding(
        "V14",
        follower.name,
        f"Q/DQ between {layer!r} and its {follower.op} keep them from being one kernel.",
        f"Remove the quantizer of the output of {layer!r}; quantize what comes out of the {follower.op} instead.",
        "D",
        rule="E",
        keras_layer=layer,
    )


def _check_depthwise(engine: PredictedEngine, chain: Chain) -> Iterator[Finding]:
    """Yield a depthwise layer in front of x * gate(x), which its kernel does not take."""
    reads = engine.flow.readers(chain.end)
    if (
        not chain.op.depthwise
        or chain.add is not None
        or any(read.scale is not None for read in reads)
    ):
        return
    gate = gate_of(engine.flow, reads)
    if gate:
        layer = keras_layer(chain.op.node.name)
        yield make_finding(
            "V13",
            chain.nodes[-1].name,
            f"{layer!r} computes in INT8 but writes floating point: a depthwise kernel does not take the "
            f"{' and '.join(dict.fromkeys(node.op for node in gate))} behind it (SiLU and the like).",
            f"No placement avoids this. If the architecture is yours, put a ReLU behind {layer!r}.",
            "E",
            rule="E",
            severity="info",
            keras_layer=layer,
        )


def _check_padding(engine: PredictedEngine, node: Node) -> Iterator[Finding]:
    if node.op != "Pad" or not is_mover(engine.graph, node) or not _pads_image_only(engine, node):
        return
    readers = [read.node for read in engine.flow.output_reads(node)]
    if readers and all(
        reader is not None and reader.op in ("Conv", "AveragePool") for reader in readers
    ):
        layer = keras_layer(node.name)
        yield make_finding(
            "H1",
            node.name,
            f"{layer!r} pads with zeros in a kernel of its own.",
            "Merge it into the pads attribute of the layer behind it.",
            "E",
            rule="E",
            keras_layer=layer,
        )


def _pads_image_only(engine: PredictedEngine, node: Node) -> bool:
    given = engine.graph.value(node.input(1)) if node.input(1) else node.integers("pads")
    if given is None or node.input(3):
        return False
    pads = [int(pad) for pad in given]
    rank = len(pads) // 2
    return not any((*pads[:2], *pads[rank : rank + 2]))
