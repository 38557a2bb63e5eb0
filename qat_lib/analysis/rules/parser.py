"""TensorRT's ONNX parser requirements on quantized graphs (findings V01 to V07).

The numbers P1 to P20 follow ``QuantDequantLinearHelper`` of onnx-tensorrt and the documentation of
IQuantizeLayer and IDequantizeLayer. No graph can violate P11 (one scale: per tensor), P16
(rounding) and P20 (names in the inspector), so they have no check.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Literal, TypeAlias

from qat_lib.analysis.findings import Finding, Rule
from qat_lib.analysis.rules.pair import check_pair
from qat_lib.graph.roles import PAIR, onnx_operators
from qat_lib.onnx_view.graph import Node, OnnxGraph
from qat_lib.onnx_view.pairs import DEQUANTIZE, QUANTIZE
from qat_lib.onnx_view.shapes import sizes_differ

TensorRTMajor: TypeAlias = Literal[8, 10, 11]
Check: TypeAlias = Callable[[OnnxGraph, Node], Iterable[Finding]]

V05 = Rule("V05", "error", "integer operator that TensorRT does not import", "P15")
V07 = Rule("V07", "error", "the parser rejects or misreads this node", "P17 P18 P19 L")

_INTEGER_OPS = onnx_operators("integer")


def check_parser_rules(
    graph: OnnxGraph, *, tensorrt: TensorRTMajor = 10, allow_uint8: bool = False
) -> list[Finding]:
    """Return findings on all nodes that TensorRT's ONNX parser rejects or misinterprets.

    Args:
        graph: the graph to check.
        tensorrt: major version to check for; 8 also requires weights as FP32 with Q and DQ (P17).
        allow_uint8: accept unsigned integers (P5), for OpenVINO and ONNX Runtime; all other rules
            apply to every runtime. Default False.

    Examples:
        >>> check_parser_rules(OnnxGraph.load("model.onnx"))
        []
    """
    found: list[Finding] = []
    for node in graph.nodes:
        if node.op in PAIR:
            found.extend(check_pair(graph, node))
        for check in _CHECKS.get(node.op, ()):
            found.extend(check(graph, node))
        found.extend(_check_integer_operator(node))
        if tensorrt == 8 and node.op == DEQUANTIZE:
            found.extend(_check_weight_form(graph, node))
    return [finding for finding in found if not (allow_uint8 and finding.rule == "P5")]


def _check_graph_output(graph: OnnxGraph, node: Node) -> Iterator[Finding]:
    if _reaches_output(graph, node):
        yield V07.at(
            node,
            message="a QuantizeLinear is a graph output: TensorRT needs a DequantizeLinear behind "
            "it.",
            advice=f"Leave the output of {node.keras_layer!r} in floating point, or end the "
            "graph with the DQ.",
            rule="L",
        )


def _reaches_output(graph: OnnxGraph, node: Node) -> bool:
    """Return whether ``node`` reaches a graph output, directly or through Identities."""
    copies, seen = [node], {node.index}
    while copies:
        outputs = copies.pop().outputs
        if not graph.output_names.isdisjoint(outputs):
            return True
        for output in outputs:
            for reader in graph.consumers(output):
                if reader.op == "Identity" and reader.index not in seen:
                    seen.add(reader.index)
                    copies.append(reader)
    return False


def _check_integer_operator(node: Node) -> Iterator[Finding]:
    name = node.op.rpartition(".")[2]
    quantized_pair = name in PAIR and node.op != name
    if name in _INTEGER_OPS or name.startswith("QLinear") or quantized_pair:
        yield V05.at(
            node,
            message=f"TensorRT does not import {node.op}.",
            advice="Quantize with Q/DQ pairs of the standard operator set; in ONNX Runtime "
            "QuantFormat.QDQ.",
        )


def _check_kernel_shape(graph: OnnxGraph, node: Node) -> Iterator[Finding]:
    declared, weight = node.integers("kernel_shape"), graph.shape(node.input(1))
    if declared is None or weight is None:
        return
    if sizes_differ(weight[2:], declared):
        yield V07.at(
            node,
            message=f"kernel_shape is {list(declared)} and the weight is {list(weight)}.",
            advice="Export the model again; the file is not valid ONNX.",
            rule="P18",
        )


def _check_batch_norm(graph: OnnxGraph, node: Node) -> Iterator[Finding]:
    if not all(map(graph.is_constant, node.inputs[1:])):
        yield V07.at(
            node,
            message="a parameter of the BatchNormalization is computed, so TensorRT takes it apart "
            "and can't fuse it.",
            advice=f"Export {node.keras_layer!r} in inference mode, so that its parameters "
            "are constants.",
            rule="P19",
            severity="warning",
        )


def _check_weight_form(graph: OnnxGraph, node: Node) -> Iterator[Finding]:
    source = graph.producer(node.input(0))
    if source is None and graph.is_constant(node.input(0)):
        yield V07.at(
            node,
            message="the weight is stored as INT8; TensorRT 8 takes FP32 weights behind Q and DQ "
            "only.",
            advice="Export with weights='qdq', or build with TensorRT 10.",
            rule="P17",
        )


_CHECKS: Mapping[str, tuple[Check, ...]] = {
    QUANTIZE: (_check_graph_output,),
    "Conv": (_check_kernel_shape,),
    "BatchNormalization": (_check_batch_norm,),
}
