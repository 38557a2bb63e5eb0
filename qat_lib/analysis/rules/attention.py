"""Attention with a quantized path from scores to Softmax (V23)."""

from __future__ import annotations

from collections.abc import Iterator

from qat_lib.analysis.engine import PredictedEngine
from qat_lib.analysis.findings import Finding, Rule
from qat_lib.analysis.reads import Read
from qat_lib.graph.roles import ARITHMETIC, onnx_operators
from qat_lib.onnx_view.graph import Node

V23 = Rule("V23", "warning", "attention mask or Softmax input is quantized", "J", "M")

#: Layout operators in exported attention, a subset of all operators that move numbers.
_MOVES = frozenset({"Reshape", "Transpose", "Cast"})
_ON_THE_WAY = ARITHMETIC | _MOVES | {"Where"}
_LONGEST_WAY = 8
#: Products of two activations; Keras writes those of its attention as Einsum.
_PRODUCTS = onnx_operators("product")


def check_attention(engine: PredictedEngine) -> Iterator[Finding]:
    """Yield attention Softmax operators with quantized scores or mask."""
    for node in engine.flow.operators:
        if node.op != "Softmax" or not _weighs_values(engine, node):
            continue
        quantized = _first_quantized(engine, node)
        if quantized is None:
            continue
        layer = node.keras_layer
        what = f"input of its {quantized.op} (mask or scale)"
        if quantized is node:
            what = "input of its Softmax"
        yield V23.at(
            quantized,
            message=f"in the attention {layer!r} the {what} is quantized: the scores lose "
            "accuracy and the fused attention kernel is lost.",
            advice=f"Remove the quantizers between the two products of {layer!r}.",
            layer=layer,
        )


def _first_quantized(engine: PredictedEngine, softmax: Node) -> Node | None:
    """Return the first operator with an INT8 input, from Softmax back to the scores."""
    for read in _way_to_scores(engine, softmax):
        if read.scale is not None:
            return read.node
    return None


def between_products(engine: PredictedEngine) -> frozenset[int]:
    """Return the node indices from an attention's scores to its Softmax.

    These nodes remain in floating point, so no rule may request a Q there: an Add of a mask or
    bias to the scores is not residual.
    """
    found: set[int] = set()
    for softmax in engine.flow.operators:
        if softmax.op != "Softmax" or not _weighs_values(engine, softmax):
            continue
        way = [read for read in _way_to_scores(engine, softmax) if read.node is not None]
        for read in reversed(way):  # from the scores down, without the branch of the mask
            source = engine.graph.producer(read.value)
            if (
                read.node is not None
                and source is not None
                and (_is_product(engine, source) or source.index in found)
            ):
                found.add(read.node.index)
    return frozenset(found)


def _weighs_values(engine: PredictedEngine, softmax: Node) -> bool:
    """Return whether the Softmax feeds a product of two activations, possibly moved or cast."""
    open_nodes = [softmax]
    for _ in range(_LONGEST_WAY):
        if not open_nodes:
            return False
        for read in engine.flow.output_reads(open_nodes.pop(0)):
            if read.node is not None and _is_product(engine, read.node):
                return True
            if read.node is not None and read.node.op in _MOVES:
                open_nodes.append(read.node)
    return False


def _is_product(engine: PredictedEngine, node: Node) -> bool:
    return node.op in _PRODUCTS and len(engine.flow.data_inputs(node)) == 2


def _way_to_scores(engine: PredictedEngine, softmax: Node) -> Iterator[Read]:
    """Yield the reads from the Softmax back to its score product."""
    open_nodes = [softmax]
    for _ in range(_LONGEST_WAY):
        if not open_nodes:
            return
        node = open_nodes.pop(0)
        for read in engine.flow.data_inputs(node):
            yield read
            producer = engine.graph.producer(read.value)
            if producer is not None and producer.op in _ON_THE_WAY:
                open_nodes.append(producer)
