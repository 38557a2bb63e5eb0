"""Parser rules on a Q or DQ's types (V03, V06, V27)."""

from __future__ import annotations

from collections.abc import Iterator

from qat_lib.analysis.findings import Finding, Rule
from qat_lib.onnx_view.graph import Node, OnnxGraph
from qat_lib.onnx_view.pairs import QUANTIZE, quantized_type

V03 = Rule("V03", "error", "quantized type is not signed INT8", "P5 P6 P8")
V06 = Rule("V06", "error", "operator set or type of a Q/DQ pair does not fit", "P14")
V27 = Rule("V27", "warning", "no engine is known to show how this runs in INT8", "K P18", "I")

#: TensorRT's quantized types besides INT8; legal, but not predicted by this library.
OTHER_TYPES = frozenset({"float8e4m3fn", "int4", "float4e2m1"})


def check_integers(graph: OnnxGraph, node: Node) -> Iterator[Finding]:
    """Yield quantized types other than INT8, also without a zero point."""
    zero_point = node.input(2)
    if node.op == QUANTIZE and not zero_point:
        if not node.integer("output_dtype"):
            yield V03.at(
                node,
                message="no zero point is given: TensorRT quantizes to INT8, ONNX Runtime to "
                "UINT8.",
                advice="Write an INT8 zero point of 0 into the file.",
                rule="P6",
                severity="warning",
            )
        return
    if zero_point and graph.value(zero_point) is None:
        return  # V02 reports computed zero points
    dtype = quantized_type(graph, node)
    if dtype != "int8" and (dtype or zero_point):
        yield _other_type(node, dtype)


def _other_type(node: Node, dtype: str) -> Finding:
    """Return the finding on a type other than INT8; ``dtype`` is empty if unknown."""
    if dtype in OTHER_TYPES:
        return V27.at(
            node,
            message=f"quantized to {dtype}: TensorRT has it, this prediction knows INT8 only.",
            advice="Read the engine's own layer list for these layers.",
            rule="P5",
            severity="info",
            confidence="D",
        )
    if dtype == "uint8":
        return _unsigned(node)
    if dtype == "int32":
        return V03.at(
            node,
            message="an INT32 tensor, usually a bias, is dequantized: TensorRT has no such layer.",
            advice=f"Keep the bias of {node.keras_layer!r} in floating point; in ONNX "
            "Runtime extra_options={'QuantizeBias': False}.",
            rule="P8",
        )
    return V03.at(
        node,
        message=f"the quantized type is {dtype or 'unknown'}; TensorRT takes INT8.",
        advice="Quantize to signed INT8 with zero point 0.",
        rule="P8",
    )


def _unsigned(node: Node) -> Finding:
    what = "refuses it"
    if node.op == QUANTIZE:
        what += " (10.1) or silently takes the range for INT8 (later)"
    return V03.at(
        node,
        message=f"the quantized type is UINT8: TensorRT {what}.",
        advice="Quantize to signed INT8 with zero point 0: unsigned=False and target='tensorrt' in "
        "qatline, QuantType.QInt8 for activations in ONNX Runtime.",
        rule="P5",
    )


def check_types_agree(graph: OnnxGraph, node: Node) -> Iterator[Finding]:
    """Yield an operator set without Q/DQ, and contradictory types of a Q."""
    if graph.opset < 10:
        yield V06.at(
            node,
            message=f"{node.op} came with opset 10; the file has {graph.opset}.",
            advice="Export with opset 13 or newer.",
        )
    if node.op != QUANTIZE:
        return
    scale, data = graph.dtype(node.input(1)), graph.dtype(node.input(0))
    if scale in ("float16", "bfloat16") and data and scale != data:
        yield V06.at(
            node,
            message=f"the scale is {scale} and the tensor {data}; in a strongly typed network they "
            "are equal.",
            advice=f"Write the scale as {data}.",
        )
    zero_point = graph.dtype(node.input(2)) if node.input(2) else ""
    written = graph.dtype(node.outputs[0])
    if node.integer("output_dtype") and zero_point and written and written != zero_point:
        yield V06.at(
            node,
            message=f"output_dtype says {written} and the zero point is {zero_point}.",
            advice="Write both as INT8.",
        )
