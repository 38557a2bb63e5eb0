"""Parser rules about one QuantizeLinear or DequantizeLinear: its scale, zero point, axis and types."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from qat_lib.analysis.findings import Confidence, Finding, Severity, make_finding
from qat_lib.onnx_view.graph import Node, OnnxGraph
from qat_lib.onnx_view.names import keras_layer
from qat_lib.onnx_view.scales import describe_bad_scales

QUANTIZE, DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
#: Quantized types that TensorRT has besides INT8; legal, but not what this library predicts.
OTHER_TYPES = frozenset({"float8e4m3fn", "int4", "float4e2m1"})


def check_pair(graph: OnnxGraph, node: Node) -> Iterator[Finding]:
    """Yield what is wrong with the quantizer or dequantizer ``node``."""
    if not well_formed(node):
        yield from _check_inputs(graph, node)
        return
    for check in (_check_scale, _check_zero_point, _check_axis, _check_types_agree):
        yield from check(graph, node)


def is_legal(graph: OnnxGraph, node: Node, *, allow_uint8: bool = False) -> bool:
    """Return whether TensorRT's parser takes a Q or DQ node; ``allow_uint8`` overlooks unsigned integers (P5)."""
    errors = [found for found in check_pair(graph, node) if found.severity == "error"]
    return all(allow_uint8 and error.rule == "P5" for error in errors)


def rule_finding(
    code: str,
    node: Node,
    rule: str,
    message: str,
    advice: str,
    severity: Severity | None = None,
    confidence: Confidence = "D",
) -> Finding:
    """Build a finding about ``node``."""
    layer = keras_layer(node.name)
    return make_finding(
        code,
        node.name,
        message,
        advice,
        confidence,
        rule=rule,
        severity=severity,
        keras_layer=layer,
    )


def well_formed(node: Node) -> bool:
    """Return whether a quantizer has a tensor, a scale and an output."""
    return bool(node.input(0) and node.input(1) and node.outputs)


def _check_inputs(graph: OnnxGraph, node: Node) -> Iterator[Finding]:
    yield rule_finding(
        "V01",
        node,
        "P1",
        f"{node.op} has {len(node.inputs)} inputs; it needs at least the tensor and its scale.",
        "Export the model again; the file is not valid ONNX.",
    )


def _check_scale(graph: OnnxGraph, node: Node) -> Iterator[Finding]:
    if not graph.is_constant(node.input(1)):
        yield rule_finding(
            "V01",
            node,
            "P3",
            "the scale is computed in the graph, so nothing about fusion can be known and "
            "TensorRT 10.1 refuses one of dynamic shape.",
            f"Freeze the range of {keras_layer(node.name)!r} before the export, so that its scale is a constant.",
            "warning",
            "I",
        )
        return
    scale = graph.value(node.input(1))
    if scale is None:
        return
    if scale.dtype.kind not in "fV" or scale.dtype == np.float64:
        yield rule_finding(
            "V01",
            node,
            "P2",
            f"the scale is {scale.dtype}; TensorRT takes float32, float16 and bfloat16.",
            "Write the scale as float32.",
        )
    problem = describe_bad_scales(scale)
    if problem:
        yield rule_finding(
            "V01",
            node,
            "P2",
            f"{problem}: a scale is a positive, finite, normal number.",
            f"Calibrate {keras_layer(node.name)!r} with data that reach it, or clamp its range above zero.",
        )


def _check_zero_point(graph: OnnxGraph, node: Node) -> Iterator[Finding]:
    name = node.input(2)
    if not name:
        yield from _check_absent_zero_point(graph, node)
        return
    zero_point = graph.value(name)
    if zero_point is None:
        if not graph.is_constant(name):
            yield rule_finding(
                "V02",
                node,
                "P4",
                "the zero point is computed in the graph; TensorRT quantizes symmetrically.",
                "Quantize symmetrically: a constant INT8 zero point of 0.",
            )
        return
    if np.count_nonzero(zero_point):
        yield rule_finding(
            "V02",
            node,
            "P4",
            f"the zero point is {_sample(zero_point)}; TensorRT takes 0 only.",
            "Quantize symmetrically (-amax to amax); in ONNX Runtime ActivationSymmetric and WeightSymmetric.",
        )
    scale_shape = graph.shape(node.input(1))
    if scale_shape is not None and all(isinstance(dim, int) for dim in scale_shape):
        scales = int(np.prod([dim for dim in scale_shape if isinstance(dim, int)], dtype=np.int64))
        if scales != zero_point.size:
            yield rule_finding(
                "V02",
                node,
                "P7",
                f"there are {zero_point.size} zero points and {scales} scales.",
                "Write one INT8 zero point for each scale.",
            )
    dtype = graph.dtype(name)
    if dtype != "int8":
        yield from _check_type(graph, node, dtype)


def _check_type(graph: OnnxGraph, node: Node, dtype: str) -> Iterator[Finding]:
    if dtype in OTHER_TYPES:
        yield rule_finding(
            "V27",
            node,
            "P5",
            f"quantized to {dtype}: TensorRT has it, this prediction knows INT8 only.",
            "Read the engine's own layer list for these layers.",
            "info",
        )
    elif dtype == "uint8":
        what = (
            "refuses it"
            if node.op == DEQUANTIZE
            else "refuses it (10.1) or silently takes the range for INT8 (later)"
        )
        yield rule_finding(
            "V03",
            node,
            "P5",
            f"the quantized type is UINT8: TensorRT {what}.",
            "Quantize to signed INT8 with zero point 0: unsigned=False and target='tensorrt' in qatline, "
            "QuantType.QInt8 for activations in ONNX Runtime.",
        )
    elif dtype == "int32":
        yield rule_finding(
            "V03",
            node,
            "P8",
            "an INT32 tensor, usually a bias, is dequantized: TensorRT has no such layer.",
            f"Keep the bias of {keras_layer(node.name)!r} in floating point; in ONNX Runtime "
            "extra_options={'QuantizeBias': False}.",
        )
    else:
        yield rule_finding(
            "V03",
            node,
            "P8",
            f"the quantized type is {dtype or 'unknown'}; TensorRT takes INT8.",
            "Quantize to signed INT8 with zero point 0.",
        )


def _check_absent_zero_point(graph: OnnxGraph, node: Node) -> Iterator[Finding]:
    if node.op == DEQUANTIZE:
        dtype = graph.dtype(node.input(0))
        if dtype and dtype != "int8":
            yield from _check_type(graph, node, dtype)
        return
    declared = node.integer("output_dtype")
    if not declared:
        yield rule_finding(
            "V03",
            node,
            "P6",
            "no zero point is given: TensorRT quantizes to INT8, ONNX Runtime to UINT8.",
            "Write an INT8 zero point of 0 into the file.",
            "warning",
        )


def quantized_type(graph: OnnxGraph, node: Node) -> str:
    """Return the type of the integers: the zero point's, else of what a DQ reads."""
    return graph.dtype(node.input(2) or node.input(0) if node.op == DEQUANTIZE else node.input(2))


def _check_axis(graph: OnnxGraph, node: Node) -> Iterator[Finding]:
    scale_shape = graph.shape(node.input(1))
    if scale_shape is None or not all(isinstance(dim, int) for dim in scale_shape):
        return
    count = int(np.prod([dim for dim in scale_shape if isinstance(dim, int)], dtype=np.int64))
    if count == 1 or quantized_type(graph, node) in OTHER_TYPES:
        return  # FP8 and INT4 have blocks and axes of their own
    if len(scale_shape) > 1:
        yield rule_finding(
            "V04",
            node,
            "P13",
            f"the scale has {len(scale_shape)} dimensions (block quantization), which INT8 does not have.",
            "Quantize with one scale for each output channel.",
        )
        return
    if graph.opset < 13:
        yield rule_finding(
            "V06",
            node,
            "P14",
            f"per-channel quantization needs opset 13; the file has {graph.opset}.",
            "Export with opset 13 or newer.",
        )
    if not graph.is_constant(node.input(0)):
        yield rule_finding(
            "V04",
            node,
            "P12",
            f"an activation is quantized with {count} scales; TensorRT quantizes activations per tensor.",
            f"Give the output of {keras_layer(node.name)!r} one range for the whole tensor.",
        )
    axis = node.integer("axis")
    if axis is None:
        yield rule_finding(
            "V04",
            node,
            "P10",
            "per-channel scales without an axis: TensorRT 10.1 takes axis 0, later versions axis 1.",
            "Write the axis attribute into the file.",
        )
        return
    shape = graph.shape(node.input(0))
    if shape is None:
        return
    inside = -len(shape) <= axis < len(shape)
    if not inside or shape[axis] != count:
        along = (
            f"{shape[axis]} channels along axis {axis}"
            if inside
            else f"no axis {axis} in a tensor of rank {len(shape)}"
        )
        yield rule_finding(
            "V04",
            node,
            "P9",
            f"there are {count} scales and {along}.",
            f"Quantize the weight of {keras_layer(node.name)!r} along its output channels.",
        )


def _check_types_agree(graph: OnnxGraph, node: Node) -> Iterator[Finding]:
    if graph.opset < 10:
        yield rule_finding(
            "V06",
            node,
            "P14",
            f"{node.op} came with opset 10; the file has {graph.opset}.",
            "Export with opset 13 or newer.",
        )
    if node.op != QUANTIZE:
        return
    scale, data = graph.dtype(node.input(1)), graph.dtype(node.input(0))
    if scale in ("float16", "bfloat16") and data and scale != data:
        yield rule_finding(
            "V06",
            node,
            "P14",
            f"the scale is {scale} and the tensor {data}; in a strongly typed network they are equal.",
            f"Write the scale as {data}.",
        )
    declared, zero_point = (
        node.integer("output_dtype"),
        graph.dtype(node.input(2)) if node.input(2) else "",
    )
    written = graph.dtype(node.outputs[0])
    if declared and zero_point and written and written != zero_point:
        yield rule_finding(
            "V06",
            node,
            "P14",
            f"output_dtype says {written} and the zero point is {zero_point}.",
            "Write both as INT8.",
        )


def _sample(values: np.ndarray[Any, Any]) -> str:
    distinct = np.unique(values)
    return ", ".join(str(value) for value in distinct[:3]) + (", ..." if distinct.size > 3 else "")
