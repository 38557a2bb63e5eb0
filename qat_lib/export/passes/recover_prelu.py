"""Replace the five pieces of Keras's PReLU by one PRelu node.

Keras computes ``relu(x) + (-alpha) * relu(-x)``. One of the two terms is zero for each x, so
``PRelu(x, alpha)`` is equal bit for bit. The pieces look like a residual Add and would prevent the
fusion of a convolution.
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
    operand,
    producer,
    replace,
)


@lowering_pass
def recover_prelu(model: ir.Model) -> None:
    """Replace the pieces of each PReLU by one PRelu with Keras's slope shape."""
    for node in list(model.graph):
        if is_op(node, "Add"):
            # The operands of the Add may be in either order.
            left, right = (producer(value) for value in node.inputs)
            found = _match(left, right) or _match(right, left)
            if found is not None:
                _write(model.graph, node, *found)


def _match(
    positive: ir.Node | None, negative: ir.Node | None
) -> tuple[ir.Value, np.ndarray] | None:
    """Return x and the negated slope of ``Relu(x)`` and ``slope * Relu(-x)``."""
    source = operand(positive, 0) if positive is not None and is_op(positive, "Relu") else None
    if source is None or negative is None or not is_op(negative, "Mul"):
        return None
    # A product has no order: the slope is either operand.
    for value, other in permutations(negative.inputs):
        slope, relu = constant(value), producer(other)
        minus = producer(operand(relu, 0)) if relu is not None and is_op(relu, "Relu") else None
        if (
            slope is None
            or minus is None
            or not is_op(minus, "Neg")
            or operand(minus, 0) is not source
        ):
            continue
        if _fits(slope.shape, source.shape):
            return source, slope
    return None


def _fits(slope: tuple[int, ...], shape: ir.Shape | None) -> bool:
    """Return whether the slope broadcasts to the shape of the tensor."""
    if shape is None or len(slope) > len(shape):
        return False
    return all(d in (1, n) for d, n in zip(reversed(slope), reversed(shape), strict=False))


def _write(graph: ir.Graph, last: ir.Node, source: ir.Value, negated: np.ndarray) -> None:
    slope = add_constant(graph, -negated, f"{last.name}/slope")
    (output,) = last.outputs
    node = new_node("PRelu", [source, slope], origin=last, shape=output.shape)
    replace(output, insert_before(last, node))
