"""Fold a BatchNormalization into the layer in front of it, with the INT8 weights unchanged.

``gamma / sqrt(variance + epsilon)`` goes into the weight's *dequantize scale*, the rest into the bias: the integers,
which were trained, stay as they are. A negative factor flips the sign of its channel's integers, which the symmetric
range [-127, 127] allows exactly; a zero factor (a dead channel) zeroes them, since a scale must stay positive.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from qat_lib.export.graph import (
    FACTOR,
    BatchNorm,
    add_constant,
    attribute,
    constant,
    consumers,
    insert_before,
    is_op,
    lowering_pass,
    only_consumer,
    operand,
    producer,
    rank,
    replace,
    set_int,
)
from qat_lib.export.passes.bias import CONVOLUTIONS, WEIGHTED, channel_axis, output_channels, set_bias

SMALLEST_SCALE = np.float32(2.0**-126)
"""Least normal float32: a smaller scale would be flushed to zero, which ONNX and TensorRT refuse."""


def batch_norm_of(node: ir.Node) -> BatchNorm | None:
    """Return the constant parameters of an inference BatchNormalization node."""
    arrays = [constant(value) for value in node.inputs[1:5]]
    if len(arrays) != 4 or attribute(node, "training_mode", 0):
        return None
    gamma, beta, mean, variance = arrays
    if gamma is None or beta is None or mean is None or variance is None:
        return None
    epsilon = float(attribute(node, "epsilon", 1e-5))
    return BatchNorm(gamma=gamma, beta=beta, mean=mean, variance=variance, epsilon=epsilon)


@lowering_pass
def fold_batchnorm(model: ir.Model) -> None:
    """Fold each BatchNormalization whose input is the only use of a weighted operator's output."""
    graph = model.graph
    for node in list(graph):
        norm = batch_norm_of(node) if is_op(node, "BatchNormalization") else None
        layer = producer(node.inputs[0]) if norm is not None else None
        if norm is None or layer is None or not _foldable(layer, node, norm):
            continue
        weight = producer(layer.inputs[1])
        if weight is not None:
            _fold_into_scale(graph, layer, weight, norm.factor)
        else:
            _fold_into_weight(graph, layer, norm.factor)
        old = constant(operand(layer, 2))
        bias = np.zeros_like(norm.offset) if old is None else old.reshape(-1).astype(np.float64)
        layer = _with_bias_input(graph, layer)
        set_bias(graph, layer, norm.factor * bias + norm.offset)
        replace(node.outputs[0], layer.outputs[0])
        graph.remove(node, safe=True)


def _foldable(layer: ir.Node, norm_node: ir.Node, norm: BatchNorm) -> bool:
    if not is_op(layer, *WEIGHTED) or only_consumer(layer.outputs[0]) is not norm_node:
        return False
    if not is_op(layer, *CONVOLUTIONS) and rank(layer.inputs[0]) != 2:
        return False
    if is_op(layer, "Gemm") and (attribute(layer, "alpha", 1.0), attribute(layer, "beta", 1.0)) != (1.0, 1.0):
        return False
    if operand(layer, 2) is not None and constant(operand(layer, 2)) is None:
        return False
    grouped = is_op(layer, "ConvTranspose") and attribute(layer, "group", 1) != 1
    return not grouped and output_channels(layer) == norm.mean.size


def _with_bias_input(graph: ir.Graph, layer: ir.Node) -> ir.Node:
    """Return an operator that takes a bias: a MatMul becomes a Gemm."""
    if is_op(layer, "MatMul"):
        layer.op_type = "Gemm"
    return layer


def _along(vector: np.ndarray, size: int, axis: int) -> np.ndarray:
    return vector.reshape([-1 if i == axis else 1 for i in range(size)])


def _fold_into_weight(graph: ir.Graph, layer: ir.Node, factor: np.ndarray) -> None:
    old = layer.inputs[1]
    weight = constant(old)
    if weight is None or old is None:
        return
    scaled = (weight * _along(factor, weight.ndim, channel_axis(layer))).astype(np.float32)
    layer.replace_input_with(1, add_constant(graph, scaled, f"{layer.meta.get('keras_layer', layer.name)}/weight"))


def _fold_into_scale(graph: ir.Graph, layer: ir.Node, dequantize: ir.Node, factor: np.ndarray) -> None:
    integers, scale = constant(dequantize.inputs[0]), constant(dequantize.inputs[1])
    if integers is None or scale is None:
        return
    axis = channel_axis(layer)
    name = dequantize.meta.get("quantizer", layer.name)
    scaled = np.broadcast_to(scale, factor.shape) * np.abs(factor)
    dead = scaled < SMALLEST_SCALE
    new_scale = np.where(dead, np.broadcast_to(scale, factor.shape), scaled).astype(np.float32)
    sign = np.where(dead, 0, np.sign(factor)).astype(np.int8)
    if len(consumers(dequantize.outputs[0])) > 1:
        dequantize = _own_copy(layer, dequantize)
    if np.any(sign != 1):
        flipped = integers * _along(sign, integers.ndim, axis)
        dequantize.replace_input_with(0, add_constant(graph, flipped, f"{name}/integers"))
    dequantize.replace_input_with(1, add_constant(graph, new_scale, f"{name}/scale"))
    dequantize.replace_input_with(2, add_constant(graph, np.zeros(new_scale.shape, np.int8), f"{name}/zero_point"))
    set_int(dequantize, "axis", axis)
    before = dequantize.meta.get(FACTOR, np.ones_like(factor))
    dequantize.meta[FACTOR] = np.where(dead, 0.0, before * factor)


def _own_copy(layer: ir.Node, dequantize: ir.Node) -> ir.Node:
    """Give a layer a DQ of its own when it shares one with another layer."""
    copy = ir.node("DequantizeLinear", dequantize.inputs, {"axis": attribute(dequantize, "axis", 1)})
    copy.meta.update(dequantize.meta)
    copy.outputs[0].shape, copy.outputs[0].type = dequantize.outputs[0].shape, dequantize.outputs[0].type
    layer.replace_input_with(1, insert_before(layer, copy))
    return copy
