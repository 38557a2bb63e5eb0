"""Q/DQ pairs: quantizing and dequantizing nodes and their types."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qat_lib.onnx_view.graph import Node, OnnxGraph

QUANTIZE, DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"


def well_formed(node: Node) -> bool:
    """Return whether a quantizer has a tensor, a scale and an output."""
    return bool(node.input(0) and node.input(1) and node.outputs)


def quantized_type(graph: OnnxGraph, node: Node) -> str:
    """Return the integer type, from the zero point or the input of a DQ."""
    # The zero point is optional; a Q without one writes UINT8, and its type is reported as unknown.
    integers = node.input(2)
    if node.op == DEQUANTIZE:
        integers = integers or node.input(0)
    return graph.dtype(integers)
