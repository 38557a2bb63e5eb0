"""Analysis of shapes computed at run time."""

from __future__ import annotations

from itertools import chain
from typing import NamedTuple

import onnx_ir as ir

from qat_lib.export.graph import constant, is_op, operand, producer, rank


class Extent(NamedTuple):
    """Element of a computed shape: ``factor``, times the size of ``axis`` if given."""

    factor: int
    axis: int | None = None


def extents(value: ir.Value | None, source: ir.Value) -> list[Extent] | None:
    """Return the elements of a computed shape in terms of the shape of ``source``, else None."""
    array = constant(value)
    if array is not None:
        if array.dtype.kind not in "iu" or array.ndim > 1:
            return None
        return [Extent(int(x)) for x in array.reshape(-1)]
    node = producer(value)
    if node is None:
        return None
    if is_op(node, "Shape"):
        # The elements of a complete Shape of ``source``, else None.
        size = rank(source)
        whole = operand(node, 0) is source and not {"start", "end"} & set(node.attributes)
        if not whole or size is None:
            return None
        return [Extent(1, axis) for axis in range(size)]
    parts = []
    for part in node.inputs if is_op(node, "Concat", "Mul") else node.inputs[:1]:
        known = extents(part, source)
        if known is None:
            return None
        parts.append(known)
    if is_op(node, "Cast", "Identity", "Squeeze", "Unsqueeze"):
        return parts[0]
    if is_op(node, "Concat"):
        return list(chain.from_iterable(parts))
    if is_op(node, "Mul"):
        return _product(*parts)
    return _picked(node, parts[0])


def _product(left: list[Extent], right: list[Extent]) -> list[Extent] | None:
    if len(left) != len(right) and 1 not in (len(left), len(right)):
        return None
    size = max(len(left), len(right))
    pairs = list(zip(left * (size // len(left)), right * (size // len(right)), strict=True))
    product = []
    for a, b in pairs:
        # A product of two sizes is not an Extent.
        if a.axis is not None and b.axis is not None:
            return None
        product.append(Extent(a.factor * b.factor, b.axis if a.axis is None else a.axis))
    return product


def _picked(node: ir.Node, whole: list[Extent]) -> list[Extent] | None:
    """Return the elements selected by a Slice or Gather, else None."""
    numbers = []
    for value in node.inputs[1:]:
        given = constant(value)
        if given is None:
            return None
        numbers.append(given.reshape(-1))
    if is_op(node, "Gather") and all(-len(whole) <= i < len(whole) for i in numbers[0]):
        return [whole[int(i)] for i in numbers[0]]
    # A shape is a vector: a Slice of it has one start and one end.
    if not is_op(node, "Slice") or any(x.size != 1 for x in numbers):
        return None
    start, end, *rest = (int(x[0]) for x in numbers)
    return whole[start : end : rest[1] if len(rest) > 1 else 1]
