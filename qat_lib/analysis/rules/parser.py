"""What TensorRT's ONNX parser demands of a quantized graph (findings V01 to V07).

The numbers P1 to P20 follow ``QuantDequantLinearHelper`` of onnx-tensorrt and the documentation of
IQuantizeLayer and IDequantizeLayer. P11 (one scale: per tensor), P16 (rounding) and P20 (names in
the inspector) can't be broken by a graph and have no check.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Literal, TypeAlias

from qat_lib.analysis.findings import Finding
from qat_lib.analysis.rules.pair import DEQUANTIZE, QUANTIZE, check_pair, rule_finding
from qat_lib.onnx_view.graph import Node, OnnxGraph
from qat_lib.onnx_view.names import keras_layer
from qat_lib.roles import onnx_operators

TensorRTMajor: TypeAlias = Literal[8, 10, 11]
Check: TypeAlias = Callable[[OnnxGraph, Node], Iterable[Finding]]

_INTEGER_OPS = onnx_operators("integer")


def check_parser_rules(graph: OnnxGraph, *, tensorrt: TensorRTMajor = 10) -> list[Finding]:
    """Return every place of ``graph`` that TensorRT's ONNX parser refuses or reads differently than it is meant.

    Args:
        graph: the graph to check.
        tensorrt: major version to check for; 8 also demands weights as FP32 with Q and DQ (P17).

    Example:
        >>> check_parser_rules(OnnxGraph.load("model.onnx"))
        []
    """
    found: list[Finding] = []
    for node in graph.nodes:
        if node.op in (QUANTIZE, DEQUANTIZE):
            found.extend(check_pair(graph, node))
        for check in _CHECKS.get(node.op, ()):
            found.extend(check(graph, node))
        found.extend(_check_integer_operator(node))
        if tensorrt == 8 and node.op == DEQUANTIZE:
            found.extend(_check_weight_form(graph, node))
    return found


def _check_graph_output(graph: OnnxGraph, node: Node) -> Iterator[Finding]:
    if _reaches_output(graph, node):
        yield rule_finding(
            "V07",
            node,
            "L",
            "a QuantizeLinear is a graph output: TensorRT needs a DequantizeLinear behind it.",
            f"Leave the output of {keras_layer(node.name)!r} in floating point, or end the graph with the DQ.",
        )


def _reaches_output(graph: OnnxGraph, node: Node) -> bool:
    """Return whether an output of ``node`` is one of the graph, as it is or behind Identities."""
    copies, seen = [node], {node.index}
    while copies:
        outputs = copies.pop().outputs
        if any(output in graph.output_names for output in outputs):
            return True
        readers = [
            reader
            for output in outputs
            for reader in graph.consumers(output)
            if reader.op == "Identity"
        ]
        copies.extend(reader for reader in readers if reader.index not in seen)
        seen.update(reader.index for reader in readers)
    return False


def _check_integer_operator(node: Node) -> Iterator[Finding]:
    name = node.op.rpartition(".")[2]
    quantized_pair = name in (QUANTIZE, DEQUANTIZE) and node.op != name
    if name in _INTEGER_OPS or name.startswith("QLinear") or quantized_pair:
        yield rule_finding(
            "V05",
            node,
            "P15",
            f"TensorRT does not import {node.op}.",
            "Quantize with Q/DQ pairs of the standard operator set; in ONNX Runtime QuantFormat.QDQ.",
        )


def _check_kernel_shape(graph: OnnxGraph, node: Node) -> Iterator[Finding]:
    declared, weight = node.integers("kernel_shape"), graph.shape(node.input(1))
    if declared is None or weight is None:
        return
    if any(
        dim != size for dim, size in zip(weight[2:], declared, strict=False) if isinstance(dim, int)
    ):
        yield rule_finding(
            "V07",
            node,
            "P18",
            f"kernel_shape is {list(declared)} and the weight is {list(weight)}.",
            "Export the model again; the file is not valid ONNX.",
        )


def _check_batch_norm(graph: OnnxGraph, node: Node) -> Iterator[Finding]:
    if not all(graph.is_constant(name) for name in node.inputs[1:]):
        yield rule_finding(
            "V07",
            node,
            "P19",
            "a parameter of the BatchNormalization is computed, so TensorRT takes it apart and can't fuse it.",
            f"Export {keras_layer(node.name)!r} in inference mode, so that its parameters are constants.",
            "warning",
        )


def _check_weight_form(graph: OnnxGraph, node: Node) -> Iterator[Finding]:
    source = graph.producer(node.input(0))
    if source is None and graph.is_constant(node.input(0)):
        yield rule_finding(
            "V07",
            node,
            "P17",
            "the weight is stored as INT8; TensorRT 8 takes FP32 weights behind Q and DQ only.",
            "Export with weights='qdq', or build with TensorRT 10.",
        )


_CHECKS: Mapping[str, tuple[Check, ...]] = {
    QUANTIZE: (_check_graph_output,),
    "Conv": (_check_kernel_shape,),
    "BatchNormalization": (_check_batch_norm,),
}
