"""Parser rules on a Q/DQ's scale and zero point (V01, V02)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from qat_lib.analysis.findings import Finding, Rule
from qat_lib.analysis.rules.pair_axis import check_axis, count_scales
from qat_lib.analysis.rules.pair_types import check_integers, check_types_agree
from qat_lib.onnx_view.graph import Node, OnnxGraph
from qat_lib.onnx_view.pairs import well_formed
from qat_lib.onnx_view.scales import describe_bad_scales

V01 = Rule("V01", "error", "scale missing, not positive or not constant", "P1 P2 P3")
V02 = Rule("V02", "error", "zero point is not zero or does not match the scale", "P4 P7")


def check_pair(graph: OnnxGraph, node: Node) -> Iterator[Finding]:
    """Yield the problems of the quantizer or dequantizer ``node``."""
    if not well_formed(node):
        yield V01.at(
            node,
            message=f"{node.op} has {len(node.inputs)} inputs; it needs at least the tensor and "
            "its scale.",
            advice="Export the model again; the file is not valid ONNX.",
        )
        return
    for check in (_check_scale, _check_zero_point, check_integers, check_axis, check_types_agree):
        yield from check(graph, node)


def is_legal(graph: OnnxGraph, node: Node, *, allow_uint8: bool = False) -> bool:
    """Return whether TensorRT's parser accepts a Q or DQ node.

    Args:
        graph: the graph of the node.
        node: the node.
        allow_uint8: accept unsigned integers (P5). Default False.
    """
    for found in check_pair(graph, node):
        overlooked = allow_uint8 and found.rule == "P5"
        if found.severity == "error" and not overlooked:
            return False
    return True


def _check_scale(graph: OnnxGraph, node: Node) -> Iterator[Finding]:
    if not graph.is_constant(node.input(1)):
        yield V01.at(
            node,
            message="the scale is computed in the graph, so nothing about fusion can be known and "
            "TensorRT 10.1 refuses one of dynamic shape.",
            advice=f"Freeze the range of {node.keras_layer!r} before the export, so that its "
            "scale is a constant.",
            rule="P3",
            severity="warning",
            confidence="I",
        )
        return
    scale = graph.value(node.input(1))
    if scale is None:
        return
    # Kind "V": bfloat16 of ml_dtypes.
    if scale.dtype.kind not in "fV" or scale.dtype == np.float64:
        yield V01.at(
            node,
            message=f"the scale is {scale.dtype}; TensorRT takes float32, float16 and bfloat16.",
            advice="Write the scale as float32.",
            rule="P2",
        )
    problem = describe_bad_scales(scale)
    if problem:
        yield V01.at(
            node,
            message=f"{problem}: a scale is a positive, finite, normal number.",
            advice=f"Calibrate {node.keras_layer!r} with data that reach it, or clamp its "
            "range above zero.",
            rule="P2",
        )


def _check_zero_point(graph: OnnxGraph, node: Node) -> Iterator[Finding]:
    name = node.input(2)
    if not name:
        return
    zero_point = graph.value(name)
    if zero_point is None:
        if not graph.is_constant(name):
            yield V02.at(
                node,
                message="the zero point is computed in the graph; TensorRT quantizes "
                "symmetrically.",
                advice="Quantize symmetrically: a constant INT8 zero point of 0.",
            )
        return
    if np.count_nonzero(zero_point):
        yield V02.at(
            node,
            message=f"the zero point is {_sample(zero_point)}; TensorRT takes 0 only.",
            advice="Quantize symmetrically (-amax to amax); in ONNX Runtime ActivationSymmetric "
            "and WeightSymmetric.",
        )
    scales = count_scales(graph, node)
    if scales is not None and scales != zero_point.size:
        yield V02.at(
            node,
            message=f"there are {zero_point.size} zero points and {scales} scales.",
            advice="Write one INT8 zero point for each scale.",
            rule="P7",
        )


def _sample(values: np.ndarray[Any, Any]) -> str:
    distinct = np.unique(values)
    return ", ".join(map(str, distinct[:3])) + (", ..." if distinct.size > 3 else "")
