"""Write a bounded ReLU as one Clip.

Keras exports ``ReLU(max_value=c)`` as ``Max(Min(Relu(x), c), 0)`` for any bound but 6: three
kernels, while engines fuse one Clip into the convolution in front.
"""

from __future__ import annotations

from itertools import permutations

import numpy as np
import onnx_ir as ir

from qat_lib.export.graph import (
    add_constant,
    constant,
    insert_before,
    is_op,
    lowering_pass,
    new_node,
    only_consumer,
    operand,
    producer,
    replace,
    scalar,
)


@lowering_pass
def write_clips(model: ir.Model) -> None:
    """Replace chains of Relu, Min and Max with scalar constants by one Clip."""
    for node in list(model.graph):
        follower = only_consumer(node.outputs[0])
        if _bounds(node) is None or (follower is not None and _bounds(follower) is not None):
            continue
        chain = _chain(node)
        low, high = -np.inf, np.inf
        for link in chain:
            _, least, most = _bounds(link) or (None, -np.inf, np.inf)
            # The composition of clips is a clip: both ends pass through each link in order.
            low, high = np.clip([low, high], least, most)
        if len(chain) > 1 and np.isfinite(low) and np.isfinite(high):
            _write(model.graph, chain, float(low), float(high))


def _chain(last: ir.Node) -> list[ir.Node]:
    """Return the chain of bounds that ends in a node, each with the next one as its only reader."""
    chain = [last]
    while (found := _bounds(chain[0])) is not None:
        before = producer(found[0])
        if before is None or _bounds(before) is None or only_consumer(before.outputs[0]) is None:
            break
        chain.insert(0, before)
    return chain


def _bounds(node: ir.Node) -> tuple[ir.Value, float, float] | None:
    """Return the operand and the interval of a clipping node, or None for other nodes."""
    if is_op(node, "Relu"):
        source = operand(node, 0)
        return None if source is None else (source, 0.0, np.inf)
    if not is_op(node, "Min", "Max") or len(node.inputs) != 2:
        return None
    for value, other in permutations(node.inputs):
        bound = scalar(other)
        if value is None or bound is None or constant(value) is not None:
            continue
        # Min and Max of integers are shape arithmetic.
        if value.dtype is not None and value.dtype.is_floating_point():
            return (value, -np.inf, bound) if node.op_type == "Min" else (value, bound, np.inf)
    return None


def _write(graph: ir.Graph, chain: list[ir.Node], low: float, high: float) -> None:
    first, last = _bounds(chain[0]), chain[-1]
    if first is None:
        return
    source, output = first[0], last.outputs[0]
    if source.dtype is None:
        return
    names = zip(("min", "max"), (low, high), strict=True)
    dtype = source.dtype.numpy()
    bounds = [add_constant(graph, np.array(x, dtype), f"{last.name}/{name}") for name, x in names]
    clip = new_node("Clip", [source, *bounds], origin=last, shape=output.shape)
    replace(output, insert_before(last, clip))
