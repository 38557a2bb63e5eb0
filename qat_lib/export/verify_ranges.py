"""Checks of the learned scales and integer weights in an ONNX file."""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Any

import numpy as np

from qat_lib.analysis.findings import Finding
from qat_lib.analysis.rules.record import Q01, Q03, Q04
from qat_lib.export.metadata import Recorded, RecordedWeight, integer_digest
from qat_lib.export.tensors import Tensors
from qat_lib.onnx_view.protos import input_name, writers

#: Advice if only a tool between export and verification can be the cause.
CHANGED = "A tool has changed the graph behind the export: export again and use the file as it is."
LEAST_HALF_SCALE = np.float32(2.0**-24)


def _expected(scale: np.ndarray, half: bool) -> np.ndarray:
    """Return a scale as stored in the file."""
    if not half:
        return np.asarray(scale, np.float32)
    # The steps of the pass `half`: clip to float16, then raise to the least subnormal.
    half_scale = np.minimum(scale, 65504).astype(np.float16)
    return np.asarray(np.maximum(half_scale, np.float16(LEAST_HALF_SCALE)), np.float32)


def check_activations(tensors: Tensors, recorded: Recorded) -> Iterator[Finding]:
    """Yield activation Q and DQ nodes with another scale or type than learned."""
    for node in tensors.proto.graph.node:
        name = tensors.quantizer(node)
        if name not in recorded.activations:
            continue
        scale = tensors.get(input_name(node, 1))
        learned = _expected(np.asarray(recorded.activations[name], np.float32), recorded.half)
        if scale is None or scale.size != 1 or np.float32(scale.reshape(())) != learned:
            found = None if scale is None else scale.ravel()[:3]
            yield Q03.at(
                node.name,
                message=f"its scale is {found}, learned was {learned}.",
                advice="The range was changed after training: export again.",
            )
        if node.op_type == "DequantizeLinear" and recorded.unsigned is not None:
            zero_point = tensors.get(input_name(node, 2))
            yield from _check_sign(node, zero_point, recorded.unsigned)


def _check_sign(
    node: Any, zero_point: np.ndarray | None, unsigned: Container[str]
) -> Iterator[Finding]:
    """Yield the node if its integers saturate at other values than in training."""
    expected = np.dtype(np.uint8 if node.name in unsigned else np.int8)
    # Without a zero point, ONNX defines UINT8.
    found = np.dtype(np.uint8) if zero_point is None else zero_point.dtype
    if found != expected or (zero_point is not None and np.any(zero_point != 0)):
        value = 0 if zero_point is None else zero_point.ravel()[0]
        yield Q03.at(
            node.name,
            message=f"its zero point is {value} of type {found}, written was 0 of type {expected}.",
            advice=CHANGED,
        )


def check_weights(tensors: Tensors, recorded: Recorded) -> Iterator[Finding]:
    """Yield missing weights and weights with other scales or integers."""
    nodes = {}
    for node in tensors.proto.graph.node:
        if node.op_type == "DequantizeLinear":
            nodes[node.name] = node
    made = writers(tensors.proto.graph.node)
    for name, weight in recorded.weights.items():
        node = nodes.get(name)
        if node is None:
            yield Q01.at(
                name,
                message="this weight's DequantizeLinear is gone.",
                advice="Export the model again.",
            )
            continue
        scale = tensors.get(input_name(node, 1))
        yield from _check_weight_scale(node, scale, weight, recorded.half)
        source = input_name(node, 0)
        integers = tensors.integers(made.get(source), source)
        if integers is None or scale is None:
            yield Q04.at(
                name,
                message="its weights are not constant or do not fit their scales.",
                advice="Export again.",
            )
            continue
        yield from _check_weight_axis(node, scale, integers, weight)
        if not _are_learned(integers, weight, _axis(node) if weight.axis is None else weight.axis):
            yield Q04.at(
                name,
                message="its INT8 weights are not those that the model learned.",
                advice="A tool has requantized the weights: export again and use the file as it "
                "is.",
            )


def _axis(node: Any) -> int:
    return next((int(a.i) for a in node.attribute if a.name == "axis"), 1)


def _check_weight_axis(
    node: Any, scale: np.ndarray, integers: np.ndarray, weight: RecordedWeight
) -> Iterator[Finding]:
    axis = _axis(node) + (integers.ndim if _axis(node) < 0 else 0)
    if scale.size > 1 and weight.axis is not None and axis != weight.axis:
        yield Q03.at(
            node.name,
            message=f"its scales lie along axis {axis}, learned were those of axis {weight.axis}.",
            advice=CHANGED,
        )


def _are_learned(integers: np.ndarray, weight: RecordedWeight, axis: int) -> bool:
    """Return whether integers match the recorded digest, ignoring the sign of a folded factor."""
    if weight.factor is not None:
        if axis >= integers.ndim or weight.factor.size not in (1, integers.shape[axis]):
            return False
        sign = np.where(weight.factor < 0, -1, 1).astype(np.int8)
        others = [other for other in range(integers.ndim) if other != axis]
        integers = integers * np.expand_dims(sign.ravel(), others)
    return integer_digest(integers, weight.factor, axis) == weight.digest


def _check_weight_scale(
    node: Any, scale: np.ndarray | None, weight: RecordedWeight, half: bool
) -> Iterator[Finding]:
    learned = weight.scale
    if weight.factor is not None:
        # A dead channel (factor 0) keeps its learned scale; its integers are zeros.
        factor = np.where(weight.factor == 0, 1.0, np.abs(weight.factor)).astype(np.float64)
        learned = np.broadcast_to(learned, factor.shape) * factor
    expected = _expected(learned, half)
    # The recorded factor is float32, with an error of half a unit in the last place.
    rtol, atol = (2.0**-9, 2.0**-24) if half else (2.0**-22, 0.0)
    if (
        scale is None
        or scale.size != expected.size
        or not np.allclose(scale.astype(np.float64).ravel(), expected.ravel(), rtol=rtol, atol=atol)
    ):
        yield Q03.at(
            node.name,
            message="its scales are not the learned ones (times the folded BatchNormalization).",
            advice="The ranges were changed after training: export again.",
        )
