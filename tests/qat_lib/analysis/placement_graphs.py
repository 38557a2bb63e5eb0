"""Small quantized graphs with a parameter for good or bad placement."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx_graphs import GraphBuilder, batch_norm, end, image


def as_output(g: GraphBuilder, *tensors: str) -> GraphBuilder:
    g.output(*tensors)
    return g


# Scales and operands.


def two_scales(first: float, second: float) -> GraphBuilder:
    g = GraphBuilder()
    x = g.op("Relu", [image(g)])
    g.output(g.conv(g.qdq(x, first), 16, 16, name="a"), g.conv(g.qdq(x, second), 16, 16, name="b"))
    return g


def requantized(second: float) -> GraphBuilder:
    g = GraphBuilder()
    pooled = g.op("MaxPool", [g.qdq(image(g), 0.1)], "pool/MaxPool", kernel_shape=[2, 2])
    g.output(g.conv(g.qdq(pooled, second), 16, 16, name="next"))
    return g


def operands(*, quantize_input: bool, quantize_weight: bool) -> GraphBuilder:
    """A convolution beside one in INT8 that reads the same tensor."""
    g = GraphBuilder()
    x = g.input()
    quantized = g.qdq(x)
    g.output(g.conv(quantized if quantize_input else x, 16, 16, quantized=quantize_weight))
    g.output(g.conv(quantized, 16, 16, name="beside"))
    return g


def transposed_weight(axis: int, *, before_quantizer: bool = False) -> GraphBuilder:
    """HWIO weights that a Transpose brings into OIHW."""
    g = GraphBuilder()
    x = g.qdq(g.input())
    stored = g.const(np.ones((3, 3, 16, 32)), np.float32 if before_quantizer else np.int8)
    if before_quantizer:
        weight = g.op("Transpose", [stored], perm=[3, 2, 0, 1])
        scale = np.full(32, 0.1)
        weight = g.dq(g.q(weight, scale, "w", axis=0), scale, "w", axis=0)
    else:
        scale = np.full((3, 3, 16, 32)[axis], 0.1)
        weight = g.op("Transpose", [g.dq(stored, scale, "w", axis=axis)], perm=[3, 2, 0, 1])
    g.output(g.op("Conv", [x, weight], "quant_conv/Conv", pads=[1] * 4))
    return g


def dense_axis(axis: int) -> GraphBuilder:
    """A product whose square weight has its scales along ``axis``."""
    g = GraphBuilder()
    weight = g.dq(g.const(np.ones((64, 64)), np.int8), np.full(64, 0.1), "w", axis=axis)
    g.output(g.op("MatMul", [g.qdq(g.input(shape=(32, 64))), weight], "quant_dense/MatMul"))
    return g


# What lies behind a weighted layer.


def other_reader(op: str, *, quantized: bool = False, **attributes: Any) -> GraphBuilder:
    """A block whose output an INT8 convolution and another operator read."""
    g = GraphBuilder()
    y = g.op("Relu", [image(g)])
    read = g.qdq(y)
    g.output(g.conv(read, 16, 16, name="next"))
    g.output(g.op(op, [read if quantized else y], f"other/{op}", **attributes))
    return g


def cut(where: str) -> GraphBuilder:
    g = GraphBuilder()
    y = image(g)
    y = g.qdq(y) if where == "before batch norm" else y
    y = batch_norm(g, y)
    y = g.qdq(y) if where == "before relu" else y
    return end(g, g.op("Relu", [y]))


def residual(
    *,
    quantize_shortcut: bool,
    quantize_branch: bool = False,
    quantize_output: bool = True,
    float_reader: bool = False,
    shape: Any = (1, 16, 16, 16),
) -> GraphBuilder:
    """Two convolutions whose sum a third reads.

    The shortcut is a tensor that is already quantized.
    """
    g = GraphBuilder()
    x = g.input(shape=shape)
    quantized = g.qdq(x)
    branch = g.conv(quantized, 16, 16, name="branch")
    branch = g.qdq(branch) if quantize_branch else branch
    total = g.op(
        "Relu",
        [g.op("Add", [quantized if quantize_shortcut else x, branch], "add/Add")],
        "relu/Relu",
    )
    g.output(g.conv(g.qdq(total), 16, 16, name="next") if quantize_output else total)
    if float_reader:
        g.output(total)
    return g


# Pools, Concats, elementwise operators, attention.


def pooled(op: str, *, quantize_output: bool = False) -> GraphBuilder:
    g = GraphBuilder()
    attributes: dict[str, Any] = {"ReduceMean": {"axes": [2, 3]}, "GlobalAveragePool": {}}.get(
        op, {"kernel_shape": [2, 2]}
    )
    y = g.op(op, [g.qdq(image(g))], f"pool/{op}", **attributes)
    return end(g, y) if quantize_output else as_output(g, y)


def concat(*scales: float | None, output: float | None = 0.1) -> GraphBuilder:
    g = GraphBuilder()
    x = g.qdq(g.input())
    branches = [g.conv(x, 16, 16, name=f"branch{i}") for i in range(len(scales))]
    read = [g.qdq(y, scale) if scale else y for y, scale in zip(branches, scales, strict=True)]
    y = g.op("Concat", read, "concat/Concat", axis=1)
    g.output(g.conv(g.qdq(y, output), 32, 16, 1, name="next") if output else y)
    return g


def gate(*, quantize_gate: bool = True, quantize_output: bool = True) -> GraphBuilder:
    """Squeeze and excite."""
    g = GraphBuilder()
    x = g.qdq(image(g))
    pooled = g.qdq(g.op("GlobalAveragePool", [x]))
    weights = g.op("Sigmoid", [g.conv(pooled, 16, 16, 1, name="expand")])
    y = g.op("Mul", [x, g.qdq(weights) if quantize_gate else weights], "excite/Mul")
    return end(g, y) if quantize_output else as_output(g, y)


def tanh(*, quantize_input: bool) -> GraphBuilder:
    """A Tanh whose output is quantized."""
    g = GraphBuilder()
    y = image(g)
    return end(g, g.op("Tanh", [g.qdq(y) if quantize_input else y], "tanh/Tanh"))


def attention(
    *, quantize_scores: bool = False, quantize_mask: bool = False, einsum: bool = False
) -> GraphBuilder:
    g = GraphBuilder()
    q, k, v = (g.qdq(g.input(name, (1, 4, 32, 32))) for name in "qkv")

    def product(a: str, b: str, name: str) -> str:
        if einsum:  # as Keras's attention writes it
            return g.op("Einsum", [a, b], f"{name}/Einsum", equation="abcd,abde->abce")
        return g.op("MatMul", [a, b], f"{name}/MatMul")

    scores = g.op("Mul", [product(q, k, "attention"), g.const(0.125)], "attention/Mul")
    mask = g.input("mask", (1, 4, 32, 32))
    scores = g.op("Add", [scores, g.qdq(mask) if quantize_mask else mask], "attention/Add")
    weights = g.op("Softmax", [g.qdq(scores) if quantize_scores else scores], "attention/Softmax")
    g.output(product(g.qdq(weights), v, "attention/values"))
    return g


# Shapes, types and borders.


def dense(rows: Any, inner: int, units: int) -> GraphBuilder:
    g = GraphBuilder()
    g.output(g.dense(g.qdq(g.input(shape=(rows, inner))), inner, units))
    return g


def convolution(channels: int, filters: int, **options: Any) -> GraphBuilder:
    """A convolution that does not read the graph's input."""
    g = GraphBuilder()
    x = g.op("Tanh", [g.input(shape=(1, channels, 8, 8))])
    g.output(g.conv(g.qdq(x), channels, filters, **options))
    return g


def transposed_convolution(axis: int | None) -> GraphBuilder:
    g = GraphBuilder()
    weight = g.weight((16, 16, 2, 2), axis)
    g.output(
        g.op("ConvTranspose", [g.qdq(g.input()), weight], "quant_up/ConvTranspose", strides=[2, 2])
    )
    return g


def convolution_over(dimensions: int) -> GraphBuilder:
    g = GraphBuilder()
    x = g.qdq(g.input(shape=(1, 16, *[8] * dimensions)))
    g.output(g.op("Conv", [x, g.weight((16, 16, *[3] * dimensions))], "quant_conv/Conv"))
    return g


def typed(activation: Any, weight: Any) -> GraphBuilder:
    g = GraphBuilder(opset=19, dtype=activation)
    x = g.qdq(g.input())
    g.dtype = np.dtype(weight)
    g.output(g.op("Conv", [x, g.weight((16, 16, 1, 1))], "quant_conv/Conv"))
    return g


def padded(pads: list[int], value: float = 0.0) -> GraphBuilder:
    """A padding of image or channels between two INT8 convolutions."""
    g = GraphBuilder()
    x = g.op("Pad", [g.qdq(image(g)), g.const(pads, np.int64), g.const(value)], "pad/Pad")
    g.output(g.conv(x, 16 + pads[1] + pads[5], 16, name="next"))
    return g


def first_layer(*, transpose: bool = False, int8: bool = False) -> GraphBuilder:
    """A convolution of the graph's input, in channels-last or INT8."""
    g = GraphBuilder()
    x = g.input(
        shape=(1, 8, 8, 16) if transpose else (1, 16, 8, 8), dtype=np.int8 if int8 else None
    )
    x = g.op("Transpose", [x], "to_nchw/Transpose", perm=[0, 3, 1, 2]) if transpose else x
    g.output(g.conv(g.dq(x) if int8 else g.qdq(x), 16, 16))
    return g
