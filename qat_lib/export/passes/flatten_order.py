"""Let a matrix product take channels-first features, by moving the rows of its weight.

Keras flattens NHWC; behind a channels-first convolution that costs a Transpose. The Transpose goes, and the rows of the
(integer) weight are put into the order in which the features now come.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from qat_lib.export.graph import (
    FACTOR,
    ORIGINAL,
    QUANTIZER,
    TENSOR,
    add_constant,
    attribute,
    constant,
    consumers,
    dims,
    is_op,
    lowering_pass,
    only_consumer,
    operand,
    producer,
)

PASSES = ("QuantizeLinear", "DequantizeLinear", "Relu", "Clip", "Identity")


@lowering_pass
def reorder_flattened_weights(model: ir.Model) -> None:
    """Drop the Transpose of ``Transpose -> Reshape to (batch, features) -> Gemm`` where the Gemm alone reads it."""
    graph = model.graph
    for node in list(graph):
        shape, perm = dims(operand(node, 0)), attribute(node, "perm")
        if not is_op(node, "Transpose") or shape is None or perm is None or perm[0] != 0 or None in shape[1:]:
            continue
        flatten = only_consumer(node.outputs[0])
        flat = None if flatten is None else dims(flatten.outputs[0])
        if flatten is None or not is_op(flatten, "Reshape", "Flatten") or flat is None or len(flat) != 2:
            continue
        product = _product(flatten)
        features = [d for d in shape[1:] if d is not None]
        if product is None or flat[1] != int(np.prod(features)) or node.inputs[0] is None:
            continue
        # order[i]: where the feature that was at i stands now.
        places = np.arange(flat[1]).reshape(features).transpose([axis - 1 for axis in perm[1:]]).reshape(-1)
        if not _move_rows(graph, product, np.argsort(places)):
            continue
        flatten.replace_input_with(0, node.inputs[0])
        graph.remove(node, safe=True)
        _forget_order(flatten)


def _forget_order(node: ir.Node | None) -> None:
    """Take the Keras name off tensors that hold a layer's values in another order now."""
    while node is not None and not is_op(node, "Gemm", "MatMul"):
        node.outputs[0].meta.pop(TENSOR, None)
        node = only_consumer(node.outputs[0])


def _product(flatten: ir.Node) -> ir.Node | None:
    """Return the Gemm or MatMul that alone reads the flattened features, through elementwise operators."""
    value = flatten.outputs[0]
    node = only_consumer(value)
    while node is not None and is_op(node, *PASSES) and node.inputs[0] is value:
        scale = constant(operand(node, 1)) if is_op(node, "QuantizeLinear", "DequantizeLinear") else None
        if scale is not None and scale.size != 1:
            return None
        value = node.outputs[0]
        node = only_consumer(value)
    if node is None or not is_op(node, "Gemm", "MatMul") or node.inputs[0] is not value:
        return None
    plain = is_op(node, "MatMul") or not (attribute(node, "transA", 0) or attribute(node, "transB", 0))
    return node if plain else None


def _move_rows(graph: ir.Graph, product: ir.Node, order: np.ndarray) -> bool:
    """Put the rows of a product's weight into ``order``; say whether it could be done."""
    dequantize = producer(product.inputs[1])
    if dequantize is None:
        weight = constant(product.inputs[1])
        if weight is None or weight.ndim != 2 or product.inputs[1] is None:
            return False
        product.replace_input_with(1, add_constant(graph, weight[order], product.inputs[1].name or "weight"))
        return True
    integers, scale = constant(dequantize.inputs[0]), constant(operand(dequantize, 1))
    per_row = scale is not None and scale.size > 1 and attribute(dequantize, "axis", 1) == 0
    if not is_op(dequantize, "DequantizeLinear") or integers is None or integers.ndim != 2 or per_row:
        return False
    if len(consumers(dequantize.outputs[0])) > 1 or FACTOR in dequantize.meta:
        return False
    name = f"{dequantize.meta.get(QUANTIZER, 'weight')}/integers"
    dequantize.replace_input_with(0, add_constant(graph, integers[order], name))
    if ORIGINAL in dequantize.meta:
        dequantize.meta[ORIGINAL] = dequantize.meta[ORIGINAL][order]
    return True
