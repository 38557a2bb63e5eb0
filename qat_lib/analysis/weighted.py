"""Weighted operators: precision, weights and amount of computation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal, TypeAlias

from qat_lib.analysis.flow import Flow
from qat_lib.analysis.reads import Read, Scale
from qat_lib.graph.roles import onnx_operators
from qat_lib.onnx_view.graph import Node, OnnxGraph
from qat_lib.onnx_view.shapes import fixed_sizes

Precision: TypeAlias = Literal["int8", "mixed", "float"]

WEIGHTED = onnx_operators("weighted")
CONVOLUTIONS = onnx_operators("convolution")
LAYOUT_OPS = onnx_operators("layout")


@dataclass(frozen=True, kw_only=True, eq=False)
class Weight:
    """A constant operand.

    Attributes:
        shape: shape at the operator; None if unknown.
        scale: its scale; None in floating point.
        layout_ops: transposes and reshapes between its DQ and the operator.
        axis: per-channel axis at the operator; None per tensor or behind a reshape.
        out_axis: axis of the output channels at the operator; None if the shape is unknown.
        quantizer: name of its quantizer; empty in floating point.
    """

    shape: tuple[int, ...] | None
    scale: Scale | None
    layout_ops: tuple[Node, ...]
    axis: int | None
    out_axis: int | None
    quantizer: str = ""


@dataclass(frozen=True, kw_only=True, eq=False)
class WeightedOp:
    """A Conv, ConvTranspose, Gemm or MatMul with its operands.

    Attributes:
        node: the operator.
        activations: reads of data, one, or two for a product of activations.
        weight: the constant operand; None for a product of activations.
        precision: ``"int8"`` if both operands are quantized, ``"mixed"`` if one is (the kernel
            then runs in floating point behind a loose Q/DQ), else ``"float"``.
        macs: multiply-accumulates for one run, with open dimensions counted as 1; 0 if unknown.
    """

    node: Node
    activations: tuple[Read, ...]
    weight: Weight | None
    precision: Precision
    macs: int

    @property
    def group(self) -> int:
        """Number of groups of a convolution."""
        return max(self.node.integer("group") or 1, 1)

    @property
    def depthwise(self) -> bool:
        """Whether this is a depthwise convolution."""
        shape = self.weight.shape if self.weight else None
        return (
            self.node.op == "Conv"
            and self.group > 1
            and shape is not None
            and len(shape) > 1
            and shape[1] == 1
        )


def find_weighted(flow: Flow) -> dict[int, WeightedOp]:
    """Return the weighted operators of a propagated flow by node index."""
    return {node.index: _classify(flow, node) for node in flow.operators if node.op in WEIGHTED}


def _classify(flow: Flow, node: Node) -> WeightedOp:
    activations: list[Read] = []
    constants: list[Read] = []
    for read in flow.inputs(node):
        if read.position < 2:
            (constants if flow.graph.is_constant(read.value) else activations).append(read)
    weight = _weight(flow, node, constants[0]) if constants else None
    return WeightedOp(
        node=node,
        activations=tuple(activations),
        weight=weight,
        precision=_precision(node, activations, weight),
        macs=_macs(flow.graph, node, weight),
    )


def _precision(node: Node, activations: Sequence[Read], weight: Weight | None) -> Precision:
    scales = [read.scale for read in activations]
    if weight is not None:
        scales.append(weight.scale)
    elif node.op in CONVOLUTIONS:
        scales.append(None)  # INT8 convolution kernels require a constant weight
    quantized = [scale is not None and scale.is_int8 for scale in scales]
    if quantized and all(quantized):
        return "int8"
    return "mixed" if any(quantized) else "float"


def _weight(flow: Flow, node: Node, read: Read) -> Weight:
    graph = flow.graph
    layout_ops: list[Node] = []
    shape = _fixed(graph.shape(node.inputs[read.position]))
    while read.scale is None:
        source = graph.producer(read.value)
        if source is None or source.op not in LAYOUT_OPS or not source.input(0):
            break
        layout_ops.append(source)
        read = flow.trace(source.input(0))
    out_axis = _out_axis(graph, node, shape)
    if read.scale is None:
        return Weight(shape=shape, scale=None, layout_ops=(), axis=None, out_axis=out_axis)
    return Weight(
        shape=shape,
        scale=read.scale,
        layout_ops=tuple(reversed(layout_ops)),
        axis=_seen_axis(graph, read.value, read.scale.axis, layout_ops),
        out_axis=out_axis,
        quantizer=graph.node_by_name[read.quantizers[0]].quantizer if read.quantizers else "",
    )


def _seen_axis(
    graph: OnnxGraph, stored: str, axis: int | None, layout_ops: list[Node]
) -> int | None:
    """Map the per-channel axis through transposes to the axis at the operator."""
    shape = graph.shape(stored)
    if axis is not None and axis < 0 and shape is not None:
        axis += len(shape)
    for node in reversed(layout_ops):
        if node.op != "Transpose":
            return None
        # ONNX: a Transpose without perm reverses the axes.
        permutation = node.integers("perm") or tuple(range(len(shape or ())))[::-1]
        if axis not in permutation:
            return None
        axis = permutation.index(axis)
    return axis


def _out_axis(graph: OnnxGraph, node: Node, shape: tuple[int, ...] | None) -> int | None:
    if node.op == "Conv":
        return 0
    if node.op == "ConvTranspose":
        return 1
    if shape is None or len(shape) < 2:
        return None
    # The constant may be the left operand; its rows are the output channels then.
    on_the_left = not graph.is_constant(node.input(1))
    if node.op == "Gemm":
        transposed = node.integer("transA" if on_the_left else "transB")
        return int(bool(transposed) == on_the_left)
    return len(shape) - (2 if on_the_left else 1)


def _fixed(shape: tuple[object, ...] | None) -> tuple[int, ...] | None:
    if shape is None:
        return None
    sizes = tuple(fixed_sizes(shape))
    return sizes if len(sizes) == len(shape) else None


def _macs(graph: OnnxGraph, node: Node, weight: Weight | None) -> int:
    if node.op in CONVOLUTIONS:
        # One product with the kernel per output position, or per input position if transposed.
        image = graph.shape(node.outputs[0] if node.op == "Conv" else node.input(0))
        if weight is None or weight.shape is None or image is None:
            return 0
        return prod(weight.shape) * _count((image[0], *image[2:]))
    result, left = graph.shape(node.outputs[0]), graph.shape(node.input(0))
    if result is None or not left:
        return 0
    inner = left[0] if node.integer("transA") else left[-1]
    return _count((*result, inner))


def _count(shape: tuple[object, ...]) -> int:
    return prod(fixed_sizes(shape))
