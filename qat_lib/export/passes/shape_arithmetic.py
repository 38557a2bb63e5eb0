"""Read shapes that a graph computes at run time, from the operators that compute them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from qat_lib.export.graph import constant, is_op, operand, producer, rank


class Extent(NamedTuple):
    """One element of a computed shape: ``factor`` times the size of ``axis``, or ``factor`` where that is None."""

    factor: int
    axis: int | None = None


def extents(value: ir.Value | None, source: ir.Value) -> list[Extent] | None:
    """Return each element of a computed shape in terms of the shape of ``source``; None when it is something else."""
    array = constant(value)
    if array is not None:
        return (
            [Extent(int(x)) for x in array.reshape(-1)]
            if array.dtype.kind in "iu" and array.ndim <= 1
            else None
        )
    node = producer(value)
    if node is None:
        return None
    if is_op(node, "Shape"):
        size = rank(source)
        whole = operand(node, 0) is source and not {"start", "end"} & set(node.attributes)
        return [Extent(1, axis) for axis in range(size)] if whole and size is not None else None
    parts = [
        extents(x, source)
        for x in (node.inputs if is_op(node, "Concat", "Mul") else node.inputs[:1])
    ]
    known = [part for part in parts if part is not None]
    if len(known) != len(parts):
        return None
    if is_op(node, "Cast", "Identity", "Squeeze", "Unsqueeze"):
        return known[0]
    if is_op(node, "Concat"):
        return [x for part in known for x in part]
    if is_op(node, "Mul"):
        return _product(*known)
    return _picked(node, known[0])


def _product(left: list[Extent], right: list[Extent]) -> list[Extent] | None:
    if len(left) != len(right) and 1 not in (len(left), len(right)):
        return None
    size = max(len(left), len(right))
    pairs = list(zip(left * (size // len(left)), right * (size // len(right)), strict=True))
    if any(a.axis is not None and b.axis is not None for a, b in pairs):
        return None
    return [Extent(a.factor * b.factor, b.axis if a.axis is None else a.axis) for a, b in pairs]


def _picked(node: ir.Node, whole: list[Extent]) -> list[Extent] | None:
    """Return the elements that a Slice or Gather takes."""
    given = [constant(operand(node, index)) for index in range(1, len(node.inputs))]
    if any(x is None for x in given):
        return None
    numbers = [np.asarray(x).reshape(-1) for x in given]
    if is_op(node, "Gather") and all(-len(whole) <= i < len(whole) for i in numbers[0]):
        return [whole[int(i)] for i in numbers[0]]
    if not is_op(node, "Slice") or any(x.size != 1 for x in numbers):
        return None
    start, end, *rest = (int(x[0]) for x in numbers)
    return whole[start : end : rest[1] if len(rest) > 1 else 1]
