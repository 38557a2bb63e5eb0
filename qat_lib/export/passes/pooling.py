"""Write means and maxima over the whole image as GlobalAveragePool and GlobalMaxPool."""

from __future__ import annotations

import onnx_ir as ir

from qat_lib.export.graph import (
    attribute,
    constant,
    insert_before,
    is_op,
    lowering_pass,
    new_node,
    operand,
    rank,
    replace,
)

POOLS = {"ReduceMean": "GlobalAveragePool", "ReduceMax": "GlobalMaxPool"}


@lowering_pass
def use_global_pools(model: ir.Model) -> None:
    """Replace a ReduceMean or ReduceMax over H, W by a global pool."""
    for node in list(model.graph):
        source, given = operand(node, 0), operand(node, 1)
        if not is_op(node, *POOLS) or source is None or rank(source) != 4:
            continue
        axes = attribute(node, "axes") if given is None else constant(given)
        if axes is None or sorted(int(axis) % 4 for axis in axes) != [2, 3]:
            continue
        shape = [*list(source.shape or [])[:2], 1, 1]
        result = insert_before(
            node, new_node(POOLS[node.op_type], [source], origin=node, shape=shape)
        )
        if not attribute(node, "keepdims", 1):
            # GlobalAveragePool and GlobalMaxPool keep axes of size 1.
            flat = new_node(
                "Flatten", [result], {"axis": 1}, origin=node, shape=node.outputs[0].shape
            )
            result = insert_before(node, flat)
        replace(node.outputs[0], result)
        model.graph.remove(node, safe=True)
