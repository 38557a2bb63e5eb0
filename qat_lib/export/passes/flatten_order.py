"""Reorder the weight rows of a matrix product for channels-first features.

Keras flattens NHWC; behind a channels-first convolution that requires a Transpose. This pass
removes the Transpose and sorts the rows of the (integer) weight by the new order of the features.
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
    dims,
    is_op,
    lowering_pass,
    only_consumer,
    operand,
    producer,
    scalar,
)
from qat_lib.export.passes.transposes import has_many_scales, transposed_from
from qat_lib.graph.roles import PAIR, onnx_operators

PASSABLE = PAIR | onnx_operators("rectifier") | {"Identity"}


@lowering_pass
def reorder_flattened_weights(model: ir.Model) -> None:
    """Drop the Transpose of ``Transpose -> Reshape to (batch, features) -> Gemm``."""
    graph = model.graph
    for node in list(graph):
        found, chain = transposed_from(node.outputs[0]), _chain(node)
        if found is None or not chain:
            continue
        source, perm = found
        order = _order(source, perm, dims(chain[0].outputs[0]))
        if order is None or not _move_rows(graph, chain[-1], order):
            continue
        chain[0].replace_input_with(0, source)
        graph.remove(node, safe=True)
        for passed in chain[:-1]:
            # The tensor now has the layer's values in another order.
            passed.outputs[0].meta.pop(TENSOR, None)


def _order(source: ir.Value, perm: list[int], flat: list[int | None] | None) -> np.ndarray | None:
    """Return the index of each feature of ``source`` in the transposed, flattened tensor."""
    features = (dims(source) or [])[1:]
    sizes = [d for d in features if d is not None]
    if perm[0] != 0 or None in features or flat is None or flat[1:] != [int(np.prod(sizes))]:
        return None
    places = np.arange(np.prod(sizes)).reshape(sizes).transpose([axis - 1 for axis in perm[1:]])
    return np.argsort(places.ravel())


def _chain(node: ir.Node) -> list[ir.Node]:
    """Return the Reshape behind ``node``, elementwise operators, and the final Gemm or MatMul."""
    reader = only_consumer(node.outputs[0])
    if not is_op(reader, "Reshape", "Flatten"):
        return []
    chain = [reader]
    reader = only_consumer(reader.outputs[0])
    # Elementwise operators commute with the order, unless they scale each channel.
    while is_op(reader, *PASSABLE) and not has_many_scales(reader):
        chain.append(reader)
        reader = only_consumer(reader.outputs[0])
    if not is_op(reader, "Gemm", "MatMul") or reader.inputs[0] is not chain[-1].outputs[0]:
        return []
    turned = attribute(reader, "transA", 0) or attribute(reader, "transB", 0)
    return [] if turned else [*chain, reader]


def _move_rows(graph: ir.Graph, product: ir.Node, order: np.ndarray) -> bool:
    """Reorder the weight rows of a product if possible; return the success."""
    value = product.inputs[1]
    weight, dequantize = constant(value), producer(value)
    if value is not None and weight is not None and weight.ndim == 2:
        product.replace_input_with(1, add_constant(graph, weight[order], value.name or "weight"))
        return True
    if (
        not is_op(dequantize, "DequantizeLinear")
        # Another reader of the weight would get reordered rows, too.
        or only_consumer(dequantize.outputs[0]) is not product
    ):
        return False
    integers, scale = constant(dequantize.inputs[0]), scalar(operand(dequantize, 1))
    if integers is None or integers.ndim != 2 or FACTOR in dequantize.meta:
        return False
    if scale is None and attribute(dequantize, "axis", 1) % 2 == 0:
        return False  # One scale per row: the scales would have to be reordered, too.
    name = f"{dequantize.meta.get(QUANTIZER, 'weight')}/integers"
    dequantize.replace_input_with(0, add_constant(graph, integers[order], name))
    if ORIGINAL in dequantize.meta:
        dequantize.meta[ORIGINAL] = dequantize.meta[ORIGINAL][order]
    return True
