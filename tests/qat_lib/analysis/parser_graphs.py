"""Small graphs with a parameter that decides whether TensorRT's parser takes them."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx_graphs import GraphBuilder


def one_quantizer(
    scale: Any = 0.1,
    zero: Any = 0,
    dtype: Any = np.int8,
    scale_dtype: Any = np.float32,
    **attributes: Any,
) -> GraphBuilder:
    """Return a graph with one pair on the input.

    It has this scale and zero point (None: absent).
    """
    g = GraphBuilder()
    x = g.input(shape=(2, 4))
    operands = [g.const(scale, scale_dtype)] + ([] if zero is None else [g.const(zero, dtype)])
    q = g.op("QuantizeLinear", [x, *operands], "x_quantizer/QuantizeLinear", **attributes)
    g.output(g.op("DequantizeLinear", [q, *operands], "x_quantizer/DequantizeLinear", **attributes))
    return g


def weight_pair(
    scale: Any, shape: tuple[int, ...] = (4, 3), opset: int = 17, **attributes: Any
) -> GraphBuilder:
    """A graph that adds a dequantized weight to its input."""
    g = GraphBuilder(opset=opset)
    x = g.input(shape=shape)
    g.output(g.op("Add", [x, g.dq(g.const(np.ones(shape), np.int8), scale, "w", **attributes)]))
    return g


def quantized_output(*, dequantize: bool) -> GraphBuilder:
    """Return a graph ending in a Q or the DQ behind it."""
    g = GraphBuilder()
    g.output(
        g.qdq(g.input(), name="x_quantizer") if dequantize else g.q(g.input(), name="x_quantizer")
    )
    return g
