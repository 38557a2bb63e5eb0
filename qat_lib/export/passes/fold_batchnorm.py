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
from qat_lib.export.ranges import INT8_MAX

SMALLEST_SCALE = np.float32(2.0**-126)
"""Least normal float32: a smaller scale would be flushed to zero, which ONNX and TensorRT refuse."""


def batch_norm_of(node: ir.Node) -> BatchNorm | None:
    """Return the constant parameters of an inference BatchNormalization node."""
    arrays = [array for value in node.inputs[1:] if (array := constant(value)) is not None]
    if len(arrays) != 4 or attribute(node, "training_mode", 0):
        return None
    gamma, beta, mean, variance = arrays
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
        weight = constant(layer.inputs[1])
        if weight is not None:
            _fold_into_weight(graph, layer, weight, norm.factor)
        elif not _fold_into_scale(graph, layer, norm.factor):
            continue
        old = constant(operand(layer, 2))
        bias = 0.0 if old is None else old.ravel().astype(np.float64)
        if is_op(layer, "MatMul"):  # which takes no bias
            layer.op_type = "Gemm"
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


def _along(vector: np.ndarray, size: int, axis: int) -> np.ndarray:
    return vector.reshape([-1 if i == axis else 1 for i in range(size)])


def _fold_into_weight(graph: ir.Graph, layer: ir.Node, weight: np.ndarray, factor: np.ndarray) -> None:
    scaled = (weight * _along(factor, weight.ndim, channel_axis(layer))).astype(np.float32)
    layer.replace_input_with(1, add_constant(graph, scaled, f"{layer.meta.get('keras_layer', layer.name)}/weight"))


def _fold_into_scale(graph: ir.Graph, layer: ir.Node, factor: np.ndarray) -> bool:
    """Fold into the scales of a quantized weight; return False, with nothing changed, where they can't take it.

    That is where they are computed or lie along another axis, or where an integer is -128 and would change its sign.
    """
    dequantize = producer(layer.inputs[1])
    if dequantize is None:
        return False
    integers, scale = constant(dequantize.inputs[0]), constant(dequantize.inputs[1])
    axis = channel_axis(layer)
    if integers is None or scale is None or (scale.size > 1 and attribute(dequantize, "axis", 1) != axis):
        return False
    name = dequantize.meta.get("quantizer", layer.name)
    scale = np.broadcast_to(scale, factor.shape)
    scaled = scale * np.abs(factor)
    dead = scaled < SMALLEST_SCALE
    new_scale = np.where(dead, scale, scaled).astype(np.float32)
    sign = np.where(dead, 0, np.sign(factor))
    flipped = integers * _along(sign, integers.ndim, axis)
    if flipped.max() > INT8_MAX:
        return False
    if len(consumers(dequantize.outputs[0])) > 1:
        dequantize = _own_copy(layer, dequantize)
    if np.any(sign != 1):
        dequantize.replace_input_with(0, add_constant(graph, flipped.astype(np.int8), f"{name}/integers"))
    dequantize.replace_input_with(1, add_constant(graph, new_scale, f"{name}/scale"))
    dequantize.replace_input_with(2, add_constant(graph, np.zeros(new_scale.shape, np.int8), f"{name}/zero_point"))
    set_int(dequantize, "axis", axis)
    before = dequantize.meta.get(FACTOR, np.ones_like(factor))
    dequantize.meta[FACTOR] = np.where(dead, 0.0, before * factor)
    return True


def _own_copy(layer: ir.Node, dequantize: ir.Node) -> ir.Node:
    """Give a layer a DQ of its own when it shares one with another layer."""
    copy = ir.node("DequantizeLinear", dequantize.inputs, {"axis": attribute(dequantize, "axis", 1)})
    copy.meta.update(dequantize.meta)
    copy.outputs[0].shape, copy.outputs[0].type = dequantize.outputs[0].shape, dequantize.outputs[0].type
    layer.replace_input_with(1, insert_before(layer, copy))
    return copy
