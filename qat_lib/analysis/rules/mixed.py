"""Operators without weights between INT8 and floating point (V18 to V22)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from qat_lib.analysis.engine import PredictedEngine
from qat_lib.analysis.findings import Finding, Rule
from qat_lib.analysis.operators import FLOAT_ONLY, INT8_ELEMENTWISE, is_average_pool
from qat_lib.analysis.reads import Read, float_reads, list_scales
from qat_lib.analysis.rules.attention import between_products
from qat_lib.graph.roles import onnx_operators
from qat_lib.onnx_view.graph import Node

V18 = Rule("V18", "warning", "elementwise operator with mixed precision", "F5 I", "I")
V19 = Rule("V19", "warning", "pooling reads INT8 and writes floating point", "G", "E")
V20 = Rule("V20", "warning", "inputs or output of a Concat have different scales", "H", "M")
V21 = Rule("V21", "warning", "Concat mixes quantized and floating-point inputs", "H", "M")
V22 = Rule("V22", "warning", "Q/DQ around an operator that always runs in floating point", "I")

_NORMALIZATIONS = onnx_operators("normalization")


def check_mixed(engine: PredictedEngine) -> Iterator[Finding]:
    """Yield operators of mixed precision, and INT8 around always-float operators."""
    in_attention = between_products(engine)
    rules = {placed.node.index: placed.rule for placed in engine.adds}
    means = _float_means(engine)
    for node in engine.flow.operators:
        # Other rules report nodes inside of a weighted kernel and sums that fuse nowhere.
        fused = engine.kernel_of[node.index].kind == "weighted"
        if fused or rules.get(node.index) == "F4":
            continue
        # Between the products of an attention, floating point is intended.
        if node.index in in_attention and node.op in INT8_ELEMENTWISE:
            continue
        if is_average_pool(engine.graph, node):
            yield from _check_pool(engine, node)
        elif node.op == "Concat":
            yield from _check_concat(engine, node)
        elif node.op in INT8_ELEMENTWISE:
            yield from _check_elementwise(engine, node, rules.get(node.index, "I"), means)
        elif node.op in FLOAT_ONLY:
            yield from _check_island(engine, node)


def _check_pool(engine: PredictedEngine, node: Node) -> Iterator[Finding]:
    quantized = not float_reads(engine.flow.data_inputs(node))
    if quantized and not engine.runs_int8(node):
        layer = node.keras_layer
        yield V19.at(
            node,
            message=f"{layer!r} reads INT8 and its output has no one INT8 scale: its input is "
            "dequantized by a separate kernel and it runs in floating point.",
            advice=f"Quantize the readers of {layer!r}, or remove the Q on its input.",
        )


def _check_concat(engine: PredictedEngine, node: Node) -> Iterator[Finding]:
    reads, layer = engine.flow.data_inputs(node), node.keras_layer
    scales = dict.fromkeys(read.scale for read in reads)
    if None in scales and len(scales) > 1:
        floats = _sources(engine, float_reads(reads))
        yield V21.at(
            node,
            message=f"{layer!r} joins quantized tensors with {', '.join(floats)}, not quantized: "
            "all are dequantized.",
            advice=f"Quantize every input of {layer!r}, in one tied group.",
        )
        return
    written = engine.written.get(node.outputs[0])
    if len(scales) == 1 and written is not None and written not in scales:
        yield V20.at(
            node,
            message=f"the inputs of {layer!r} have another scale than its output: each is rescaled "
            "by a kernel.",
            advice=f"Tie the quantizers of the inputs and of the output of {layer!r} into one "
            "group that shares a range.",
        )
    elif len(scales) > 1:
        listed = list_scales(filter(None, scales))
        yield V20.at(
            node,
            message=f"the inputs of {layer!r} have different scales ({listed}): each that differs "
            "is rescaled by a kernel.",
            advice=f"Tie the quantizers of the inputs of {layer!r} into one group that shares a "
            "range.",
        )


def _check_elementwise(
    engine: PredictedEngine, node: Node, rule: str, means: frozenset[str]
) -> Iterator[Finding]:
    reads, layer = engine.flow.data_inputs(node), node.keras_layer
    floats = float_reads(reads)
    if len(floats) == len(reads) or engine.runs_int8(node) or _normalizes(reads, means):
        return
    if floats:
        names = " and ".join(_sources(engine, floats))
        yield V18.at(
            node,
            message=f"{layer!r} reads INT8 and floating point ({names} is not quantized), so it "
            "runs in floating point behind a dequantize kernel.",
            advice=f"Quantize all inputs and the output of {layer!r}, or none of them.",
            rule=rule,
        )
    else:
        yield V18.at(
            node,
            message=f"{layer!r} reads INT8 but its output is not quantized by one scale, so it "
            "runs in floating point behind dequantize kernels.",
            advice=f"Quantize the readers of {layer!r}, or remove the Q on its inputs.",
            rule=rule,
        )


def _normalizes(reads: Sequence[Read], means: frozenset[str]) -> bool:
    """Return whether the reads belong to a decomposed layer normalization of an INT8 tensor.

    It computes in floating point in any placement, but a Q in front allows the previous kernel to
    write INT8.
    """
    return any(read.scale is not None and read.value in means for read in reads)


def _float_means(engine: PredictedEngine) -> frozenset[str]:
    """Return the inputs of all ReduceMean operators except average pools."""
    found: set[str] = set()
    for node in engine.flow.operators:
        if node.op == "ReduceMean" and not is_average_pool(engine.graph, node):
            found.update(read.value for read in engine.flow.inputs(node))
    return frozenset(found)


def _check_island(engine: PredictedEngine, node: Node) -> Iterator[Finding]:
    reads = engine.flow.data_inputs(node)
    outputs = engine.flow.output_reads(node)
    if node.op in _NORMALIZATIONS and all(read.value in engine.written for read in reads):
        # The Q allows the previous kernel to write INT8: ModelOpt quantizes the input of a
        # LayerNorm behind a Conv.
        return
    on_both_sides = reads and outputs and all(read.explicit for read in (*reads, *outputs))
    if not on_both_sides:
        return
    layer = node.keras_layer
    yield V22.at(
        node,
        message=f"{layer!r} always computes in floating point; Q/DQ on both sides of it only cost "
        "conversions.",
        advice=f"Remove the Q on the input of {layer!r}.",
    )


def _sources(engine: PredictedEngine, reads: Iterable[Read]) -> list[str]:
    """Return the quoted source layers or graph inputs of the reads."""
    names = []
    for read in reads:
        producer = engine.graph.producer(read.value)
        names.append(repr(producer.keras_layer if producer is not None else read.value))
    return names
