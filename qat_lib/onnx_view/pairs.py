"""Q/DQ pairs: quantizing and dequantizing nodes and their types."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

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


def quantized(
    values: np.ndarray[Any, Any], scale: np.ndarray[Any, Any], zero: np.ndarray[Any, Any], axis: int
) -> np.ndarray[Any, Any] | None:
    """Return the integers that a QuantizeLinear writes, in the type of ``zero``.

    Args:
        values: any shape.
        scale: one scale, or one per channel of ``axis``; for other shapes the result is None.
        zero: zero point of INT8 or UINT8, one or as many as scales.
        axis: axis of the channels.
    """
    if scale.ndim:
        if not -values.ndim <= axis < values.ndim or scale.size not in (1, values.shape[axis]):
            return None
        others = [i for i in range(values.ndim) if i != axis % values.ndim]
        scale = np.expand_dims(scale.ravel(), others)
        zero = np.expand_dims(zero.ravel(), others)
    limits = np.iinfo(zero.dtype)
    shifted = np.rint(values / scale) + zero
    return np.asarray(np.clip(shifted, limits.min, limits.max).astype(zero.dtype))
