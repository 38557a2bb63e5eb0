"""Replace Mul and Add of a BatchNormalization by one node."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from qat_lib.export.graph import (
    BATCH_NORM,
    LAYER,
    BatchNorm,
    add_constant,
    constant,
    insert_before,
    is_op,
    lowering_pass,
    new_node,
    only_consumer,
    rank,
    replace,
)
from qat_lib.export.passes.bias import per_channel


def _split(node: ir.Node) -> tuple[ir.Value | None, ir.Value | None]:
    """Return the data operand and the constant operand of a binary node."""
    first, second = node.inputs[0], node.inputs[1]
    return (second, first) if constant(first) is not None else (first, second)


@lowering_pass
def recover_batchnorm(model: ir.Model) -> None:
    """Replace ``Mul(x, factor) -> Add(offset)`` of a BatchNormalization by one node.

    ONNX BatchNormalization requires the channels in axis 1 (NCHW, or rank 2); other nodes remain.
    """
    graph = model.graph
    for multiply in list(graph):
        norm = multiply.meta.get(BATCH_NORM)
        if norm is None or not is_op(multiply, "Mul"):
            continue
        add = only_consumer(multiply.outputs[0])
        # An Add of another layer, such as a residual connection, is not the offset.
        if add is None or not is_op(add, "Add") or add.meta.get(LAYER) != multiply.meta.get(LAYER):
            continue
        data, factor = _split(multiply)
        size = rank(data)
        if data is None or size is None or not _matches(norm, factor, _split(add)[1], size):
            continue
        name = multiply.meta[LAYER]
        parameters = [
            ("gamma", norm.gamma),
            ("beta", norm.beta),
            ("mean", norm.mean),
            ("variance", norm.variance),
        ]
        node = new_node(
            "BatchNormalization",
            [
                data,
                *(
                    add_constant(graph, np.asarray(array, np.float32), f"{name}/{key}")
                    for key, array in parameters
                ),
            ],
            {"epsilon": float(norm.epsilon)},
            origin=multiply,
            shape=add.outputs[0].shape,
        )
        replace(add.outputs[0], insert_before(multiply, node))
        graph.remove([add, multiply], safe=True)


def _matches(norm: BatchNorm, factor: ir.Value | None, offset: ir.Value | None, size: int) -> bool:
    """Return whether both constants are those of the layer, per channel along axis 1."""
    channels = norm.mean.size
    found = per_channel(factor, channels, size, 1), per_channel(offset, channels, size, 1)
    if found[0] is None or found[1] is None:
        return False
    # The offset is a difference, so its float32 error is relative to the terms.
    scale = np.abs(norm.beta) + np.abs(norm.mean * norm.factor)
    return np.allclose(found[0], norm.factor, rtol=1e-4, atol=1e-30) and bool(
        np.all(np.abs(found[1] - norm.offset) <= 1e-4 * scale + 1e-30)
    )
