"""Fold a BatchNormalization into the preceding layer without changing its INT8 weights.

``gamma / sqrt(variance + epsilon)`` is folded into the *dequantize scale* of the weight, the rest
into the bias; the trained integers do not change. A negative factor flips the signs of its
channel's integers, which is exact in the symmetric range [-127, 127]; a zero factor (a dead
channel) sets them to zero, because a scale must be positive.
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
    insert_before,
    is_op,
    lowering_pass,
    new_node,
    only_consumer,
    operand,
    producer,
    rank,
    replace,
)
from qat_lib.export.passes.bias import (
    CONVOLUTIONS,
    WEIGHTED,
    channel_axis,
    output_channels,
    set_bias,
)

SMALLEST_SCALE = np.float32(2.0**-126)
"""Least normal float32: runtimes flush smaller scales to zero, and ONNX and TensorRT reject zero.
"""


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
    """Fold each BatchNormalization behind a weighted operator without other readers."""
    graph = model.graph
    for node in list(graph):
        norm = batch_norm_of(node) if is_op(node, "BatchNormalization") else None
        layer = producer(operand(node, 0))
        if norm is None or layer is None or not _foldable(layer, node, norm):
            continue
        dequantize = producer(layer.inputs[1])
        if dequantize is None:
            _fold_into_weight(graph, layer, norm.factor)
        elif not _fold_into_scale(graph, layer, dequantize, norm.factor):
            continue
        old = constant(operand(layer, 2))
        bias = 0.0 if old is None else old.ravel().astype(np.float64)
        if is_op(layer, "MatMul"):  # A MatMul has no bias.
            layer.op_type = "Gemm"
        set_bias(graph, layer, norm.factor * bias + norm.offset)
        replace(node.outputs[0], layer.outputs[0])
        graph.remove(node, safe=True)


def _foldable(layer: ir.Node, norm_node: ir.Node, norm: BatchNorm) -> bool:
    if not is_op(layer, *WEIGHTED) or only_consumer(layer.outputs[0]) is not norm_node:
        return False
    if not is_op(layer, *CONVOLUTIONS) and rank(layer.inputs[0]) != 2:
        return False
    if is_op(layer, "Gemm") and (attribute(layer, "alpha", 1.0), attribute(layer, "beta", 1.0)) != (
        1.0,
        1.0,
    ):
        return False
    if operand(layer, 2) is not None and constant(operand(layer, 2)) is None:
        return False
    # The weight axis of a grouped ConvTranspose covers the outputs of one group only.
    grouped = is_op(layer, "ConvTranspose") and attribute(layer, "group", 1) != 1
    return not grouped and output_channels(layer) == norm.mean.size


def _along(vector: np.ndarray, size: int, axis: int) -> np.ndarray:
    return np.expand_dims(vector, [i for i in range(size) if i != axis])


def _fold_into_weight(graph: ir.Graph, layer: ir.Node, factor: np.ndarray) -> None:
    weight = np.asarray(constant(layer.inputs[1]))
    scaled = (weight * _along(factor, weight.ndim, channel_axis(layer))).astype(np.float32)
    layer.replace_input_with(
        1, add_constant(graph, scaled, f"{layer.meta.get('keras_layer', layer.name)}/weight")
    )


def _fold_into_scale(
    graph: ir.Graph, layer: ir.Node, dequantize: ir.Node, factor: np.ndarray
) -> bool:
    """Fold the factor into the DQ scales of the layer, if possible; return the success.

    It is impossible if the scales are computed or along another axis, or if an integer -128 would
    change its sign.
    """
    integers, scale = constant(operand(dequantize, 0)), constant(operand(dequantize, 1))
    axis = channel_axis(layer)
    if (
        integers is None
        or scale is None
        or (scale.size > 1 and attribute(dequantize, "axis", 1) != axis)
    ):
        return False
    scale = np.broadcast_to(scale, factor.shape)
    scaled = scale * np.abs(factor)
    dead = scaled < SMALLEST_SCALE
    sign = np.where(dead, 0, np.sign(factor))
    signed = integers * _along(sign, integers.ndim, axis)
    # -128 with a flipped sign is 128.
    if signed.max() > np.iinfo(np.int8).max:
        return False
    name = dequantize.meta.get("quantizer", layer.name)
    kept = np.array_equal(signed, integers)
    constants = [
        dequantize.inputs[0]
        if kept
        else add_constant(graph, signed.astype(np.int8), f"{name}/integers"),
        add_constant(graph, np.where(dead, scale, scaled).astype(np.float32), f"{name}/scale"),
        add_constant(graph, np.zeros(scale.shape, np.int8), f"{name}/zero_point"),
    ]
    # A new DQ instead of a change in place: other layers may read the old one.
    folded = new_node(
        "DequantizeLinear", constants, {"axis": axis}, origin=dequantize, shape=integers.shape
    )
    before = dequantize.meta.get(FACTOR, np.ones_like(factor))
    folded.meta.update(dequantize.meta)
    folded.meta[FACTOR] = np.where(dead, 0.0, before * factor)
    layer.replace_input_with(1, insert_before(layer, folded))
    return True
