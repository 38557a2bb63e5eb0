"""Store quantized weights as INT8 in the layout of their consumer.

tf2onnx leaves ``float weight -> Q -> DQ -> Transpose -> Reshape -> Conv``, and TensorRT supports no
Transpose between a weight's DQ and its layer. This pass computes the integers once, in the Keras
layout, with the learned range. Integers and scales then go through the same transposes and
reshapes, and the moved scales determine the ONNX axis.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from qat_lib.errors import ExportError
from qat_lib.export.graph import (
    LEARNED,
    ORIGINAL,
    QUANTIZER,
    add_constant,
    attribute,
    constant,
    consumers,
    insert_before,
    is_op,
    lowering_pass,
    new_node,
    operand,
    set_int,
)
from qat_lib.export.passes.activation_ranges import find_range, quantizer_pairs
from qat_lib.export.ranges import LearnedRange
from qat_lib.graph.roles import onnx_operators

MOVES = onnx_operators("layout") | {"Identity"}


@dataclass(frozen=True)
class _Moved:
    """Integers and scales of equal shape, moved through layout operators."""

    integers: np.ndarray
    scales: np.ndarray

    def through(self, node: ir.Node) -> _Moved | None:
        """Return the result of a layout operator, or None for non-constant arguments."""
        if is_op(node, "Identity"):
            return self
        if is_op(node, "Transpose"):
            perm = attribute(node, "perm")
            return _Moved(self.integers.transpose(perm), self.scales.transpose(perm))
        shape = self._new_shape(node)
        return (
            None
            if shape is None
            else _Moved(self.integers.reshape(shape), self.scales.reshape(shape))
        )

    def _new_shape(self, node: ir.Node) -> tuple[int, ...] | None:
        given = constant(operand(node, 1))
        if is_op(node, "Flatten"):
            axis = attribute(node, "axis", 1)
            return (int(np.prod(self.integers.shape[:axis])), -1)
        if is_op(node, "Squeeze"):
            # NumPy computes the shape; a Boolean array is the cheapest argument.
            return np.squeeze(
                np.empty(self.integers.shape, bool), None if given is None else tuple(given)
            ).shape
        if given is None:
            return None
        if is_op(node, "Unsqueeze"):
            return np.expand_dims(np.empty(self.integers.shape, bool), tuple(given)).shape
        return tuple(self.integers.shape[i] if d == 0 else int(d) for i, d in enumerate(given))


def scale_axis(scales: np.ndarray, name: str) -> tuple[int, np.ndarray]:
    """Return the axis of differing scales, and the scales along it.

    Raises:
        ExportError: the scales differ along several axes; no ONNX runtime supports that for INT8.
    """
    if np.ptp(scales) == 0:
        # Equal scales are stored as a scalar, so the axis has no effect.
        return 0, np.asarray(scales.max(), np.float32)
    for axis in range(scales.ndim):
        lane = np.moveaxis(scales, axis, 0).reshape(scales.shape[axis], -1)
        if np.all(lane == lane[:, :1]):
            return axis, np.ascontiguousarray(lane[:, 0], np.float32)
    raise ExportError(
        f"Expected the scales of {name!r} to vary along one axis of its ONNX weight. Received "
        "scales that vary along "
        "several. Quantize this weight per output channel, or per tensor."
    )


@lowering_pass
def store_quantized_weights(model: ir.Model, ranges: Mapping[str, LearnedRange]) -> None:
    """Replace ``Q -> DQ -> moves`` of each weight by ``INT8 -> DQ``.

    Each consumer of the weight gets a DQ; consumers with the same layout share the initializer.

    Raises:
        ExportError: a marker belongs to no quantizer, the scales vary along several ONNX axes, or a
            weight's quantizer is unsigned.
    """
    for quantize, dequantize in quantizer_pairs(model):
        weight = constant(quantize.inputs[0])
        if weight is None:
            continue
        learned = find_range(dequantize.meta[QUANTIZER], ranges)
        if learned.unsigned:
            raise ExportError(
                f"Expected signed integers for a weight. Received: {learned.name!r} with "
                "unsigned=True. "
                "Quantize weights with unsigned=False, its default."
            )
        integers = learned.integers(weight)
        # One scale per element: it follows the element through every transpose and reshape.
        scales = np.broadcast_to(learned.scale, weight.shape)
        _Writer(model.graph, learned.name).follow(dequantize, _Moved(integers, scales), dequantize)


class _Writer:
    """Writer of an initializer and a DQ for each consumer of a weight."""

    def __init__(self, graph: ir.Graph, name: str) -> None:
        self.graph = graph
        self.name = name
        self.stored: dict[tuple[tuple[int, ...], bytes], ir.Value] = {}

    def follow(self, node: ir.Node, moved: _Moved, dequantize: ir.Node) -> None:
        """Follow the readers of ``node`` through layout operators to the weight's consumers."""
        for reader in consumers(node.outputs[0]):
            after = moved.through(reader) if is_op(reader, *MOVES) else None
            if after is not None:
                self.follow(reader, after, dequantize)
                continue
            value = self._write(moved, reader, dequantize)
            for index, source in enumerate(reader.inputs):
                if source is node.outputs[0]:
                    reader.replace_input_with(index, value)

    def _write(self, moved: _Moved, reader: ir.Node, dequantize: ir.Node) -> ir.Value:
        axis, scale = scale_axis(moved.scales, self.name)
        integers = np.ascontiguousarray(moved.integers)
        key = (integers.shape, hashlib.sha256(integers.tobytes()).digest())
        if key not in self.stored:
            self.stored[key] = add_constant(self.graph, integers, f"{self.name}/integers")
        node = new_node(
            "DequantizeLinear",
            [
                self.stored[key],
                add_constant(self.graph, scale, f"{self.name}/scale"),
                add_constant(self.graph, np.zeros(scale.shape, np.int8), f"{self.name}/zero_point"),
            ],
            origin=dequantize,
            shape=integers.shape,
            dtype=ir.DataType.FLOAT,
        )
        set_int(node, "axis", axis)
        node.meta[QUANTIZER] = self.name
        node.meta[LEARNED] = scale
        node.meta[ORIGINAL] = integers
        return insert_before(reader, node)
