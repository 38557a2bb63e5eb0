"""Write a Dense layer of rank 3 or more as one MatMul.

Keras flattens all axes but the last, multiplies and restores the shape, which it computes at run
time. ONNX MatMul supports any rank.
"""

from __future__ import annotations

import onnx_ir as ir

from qat_lib.export.graph import (
    dims,
    insert_before,
    is_op,
    lowering_pass,
    new_node,
    only_consumer,
    operand,
    producer,
    replace,
)
from qat_lib.export.passes.bias import weight_shape
from qat_lib.export.passes.shape_arithmetic import Extent, extents


@lowering_pass
def merge_batched_dense(model: ir.Model) -> None:
    """Replace ``Reshape -> MatMul with constant weight -> Reshape`` by one MatMul."""
    graph = model.graph
    for node in list(graph):
        first, last = producer(operand(node, 0)), only_consumer(node.outputs[0])
        if not is_op(node, "MatMul") or not is_op(first, "Reshape") or not is_op(last, "Reshape"):
            continue
        source, output, shape = first.inputs[0], last.outputs[0], weight_shape(node)
        before, after = dims(source), dims(output)
        if before is None or after is None or only_consumer(first.outputs[0]) is not node:
            continue
        # The flattened axes must be restored exactly; otherwise, the Reshape has another purpose.
        if len(before) < 3 or shape != (before[-1], after[-1]) or not _same_but_last(source, last):
            continue
        product = new_node("MatMul", [source, node.inputs[1]], origin=node, shape=output.shape)
        replace(output, insert_before(node, product))
        graph.remove([last, node, first], safe=True)


def _same_but_last(source: ir.Value | None, reshape: ir.Node) -> bool:
    """Return whether the Reshape restores all axes of ``source`` but the last."""
    before, after = (dims(source) or [])[:-1], (dims(reshape.outputs[0]) or [])[:-1]
    # One open axis (the batch) follows from the others.
    if before == after and before.count(None) <= 1:
        return True
    target = None if source is None else extents(operand(reshape, 1), source)
    if target is None or len(target) != len(before) + 1:
        return False
    return all(
        x == Extent(1, i) or (x.axis is None and x.factor == before[i])
        for i, x in enumerate(target[:-1])
    )
