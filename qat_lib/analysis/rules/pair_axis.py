"""Parser rules on per-channel scales of one Q or DQ (V04)."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from qat_lib.analysis.findings import Finding, Rule
from qat_lib.analysis.rules.pair_types import OTHER_TYPES, V06
from qat_lib.onnx_view.graph import Node, OnnxGraph
from qat_lib.onnx_view.pairs import quantized_type
from qat_lib.onnx_view.shapes import fixed_sizes

V04 = Rule(
    "V04", "error", "per-channel axis is wrong, missing or on an activation", "P9 P10 P12 P13 D"
)


def count_scales(graph: OnnxGraph, node: Node) -> int | None:
    """Return the number of scales of a quantizer; None if unknown."""
    shape = graph.shape(node.input(1))
    if shape is None:
        return None
    sizes = fixed_sizes(shape)
    return prod(sizes) if len(sizes) == len(shape) else None


def check_axis(graph: OnnxGraph, node: Node) -> Iterator[Finding]:
    """Yield per-channel activation scales, blocked scales, and scales off the channel axis."""
    count = count_scales(graph, node)
    if count is None or count == 1 or quantized_type(graph, node) in OTHER_TYPES:
        return  # FP8 and INT4 have other blocks and axes
    rank = len(graph.shape(node.input(1)) or ())
    if rank > 1:
        yield V04.at(
            node,
            message=f"the scale has {rank} dimensions (block quantization), which INT8 does not "
            "have.",
            advice="Quantize with one scale for each output channel.",
            rule="P13",
        )
        return
    if graph.opset < 13:
        yield V06.at(
            node,
            message=f"per-channel quantization needs opset 13; the file has {graph.opset}.",
            advice="Export with opset 13 or newer.",
        )
    if not graph.is_constant(node.input(0)):
        yield V04.at(
            node,
            message=f"an activation is quantized with {count} scales; TensorRT quantizes "
            "activations per tensor.",
            advice=f"Give the output of {node.keras_layer!r} one range for the whole tensor.",
            rule="P12",
        )
    yield from _check_channels(graph, node, count)


def _check_channels(graph: OnnxGraph, node: Node, count: int) -> Iterator[Finding]:
    """Yield a missing axis of ``count`` scales, or an axis of another size."""
    axis = node.integer("axis")
    if axis is None:
        yield V04.at(
            node,
            message="per-channel scales without an axis: TensorRT 10.1 takes axis 0, later "
            "versions axis 1.",
            advice="Write the axis attribute into the file.",
            rule="P10",
        )
        return
    shape = graph.shape(node.input(0))
    if shape is None:
        return
    inside = -len(shape) <= axis < len(shape)
    if inside and shape[axis] == count:
        return
    along = f"no axis {axis} in a tensor of rank {len(shape)}"
    if inside:
        along = f"{shape[axis]} channels along axis {axis}"
    yield V04.at(
        node,
        message=f"there are {count} scales and {along}.",
        advice=f"Quantize the weight of {node.keras_layer!r} along its output channels.",
        rule="P9",
    )
