"""Put a Keras PReLU, which reaches ONNX in five pieces, together again as one node.

Keras writes ``relu(x) + (-alpha) * relu(-x)``. For each x one of the two terms is zero, so ``PRelu(x, alpha)`` is the
same number, bit for bit. The pieces look like a residual Add, which would take the fusion of a convolution.
"""

from __future__ import annotations

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
    rank,
    replace,
)


@lowering_pass
def recover_prelu(model: ir.Model) -> None:
    """Replace the pieces of a PReLU by one PRelu, its slope broadcast to the shape that Keras gives it."""
    for node in list(model.graph):
        if not is_op(node, "Add") or len(node.inputs) != 2:
            continue
        left, right = (producer(value) for value in node.inputs)
        for positive, negative in ((left, right), (right, left)):
            found = _match(positive, negative)
            if found is not None:
                _write(model.graph, node, *found)
                break


def _match(positive: ir.Node | None, negative: ir.Node | None) -> tuple[ir.Value, ir.Value] | None:
    """Return x and the negated slope of ``Relu(x)`` and ``slope * Relu(-x)``."""
    source = operand(positive, 0) if positive is not None and is_op(positive, "Relu") else None
    if source is None or negative is None or not is_op(negative, "Mul"):
        return None
    for slope, other in (tuple(negative.inputs), tuple(reversed(negative.inputs))):
        relu = producer(other)
        minus = producer(operand(relu, 0)) if relu is not None and is_op(relu, "Relu") else None
        if minus is None or not is_op(minus, "Neg") or operand(minus, 0) is not source:
            continue
        if slope is not None and constant(slope) is not None and _fits(slope, source):
            return source, slope
    return None


def _fits(slope: ir.Value, source: ir.Value) -> bool:
    """Whether the slope broadcasts to the tensor without making it larger, as ONNX asks of a PRelu."""
    size, shape = rank(source), slope.shape
    if size is None or shape is None or len(shape) > size or source.shape is None:
        return False
    return all(d in (1, n) for d, n in zip(reversed(shape), reversed(source.shape), strict=False))


def _write(graph: ir.Graph, last: ir.Node, source: ir.Value, negated: ir.Value) -> None:
    array = constant(negated)
    if array is None:
        raise TypeError("The slope of a PReLU is a constant.")
    slope = add_constant(graph, -array, f"{last.name}/slope")
    node = new_node("PRelu", [source, slope], origin=last, shape=last.outputs[0].shape)
    replace(last.outputs[0], insert_before(last, node))
