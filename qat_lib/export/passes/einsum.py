"""Write an Einsum with a weight as a MatMul between two Reshapes.

An EinsumDense on a sequence of open length is exported as Einsum. Engines have no INT8 kernel for
it, and its weight may have ranges along several axes, not supported by DequantizeLinear. As a
matrix, the weight has one output axis.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from qat_lib.export.graph import (
    add_constant,
    attribute,
    constant,
    dims,
    insert_before,
    is_op,
    lowering_pass,
    new_node,
    operand,
    producer,
    rank,
    replace,
)


@dataclass(frozen=True, kw_only=True)
class _Equation:
    """Equation ``batch + summed, weight -> batch + made``, as indices of weight axes.

    Attributes:
        batch: number of leading axes shared by data and output.
        summed: summed axes of the weight, in the order of the last axes of the data.
        made: axes of the weight at the end of the output, in output order.
    """

    batch: int
    summed: tuple[int, ...]
    made: tuple[int, ...]


@lowering_pass
def merge_einsum(model: ir.Model) -> None:
    """Replace each Einsum of data and a constant weight."""
    for node in list(model.graph):
        if not is_op(node, "Einsum"):
            continue
        data, weight = operand(node, 0), operand(node, 1)
        shape, size = _weight_shape(weight), rank(data)
        if data is None or weight is None or shape is None or size is None:
            continue
        equation = _parse(attribute(node, "equation", ""), size, len(shape))
        if equation is not None:
            _write(model.graph, node, data, weight, shape, equation)


def _weight_shape(value: ir.Value | None) -> list[int] | None:
    """Return the shape of a constant or Q/DQ-wrapped constant, else None."""
    source = value
    while (node := producer(source)) is not None and is_op(
        node, "QuantizeLinear", "DequantizeLinear"
    ):
        source = operand(node, 0)
    array = constant(source)
    return None if array is None else list(array.shape)


def _parse(text: str, data_rank: int, weight_rank: int) -> _Equation | None:
    operands, _, result = text.replace(" ", "").partition("->")
    data, _, weight = operands.partition(",")
    if not len(weight) == len(set(weight)) == weight_rank:
        return None
    # Letters for the axes of the ellipsis; Keras's own equations use lower-case letters.
    open_axes = "ABCDEFGH"[: data_rank - len(data.replace("...", ""))] if "..." in data else ""
    data, result = data.replace("...", open_axes), result.replace("...", open_axes)
    batch = len(data) - sum(letter in weight for letter in data)
    summed, made = data[batch:], result[batch:]
    whole = data[:batch] == result[:batch] and sorted(summed + made) == sorted(weight)
    if len(data) != data_rank or not whole or not batch or not summed or not made:
        return None
    return _Equation(
        batch=batch,
        summed=tuple(weight.index(letter) for letter in summed),
        made=tuple(weight.index(letter) for letter in made),
    )


def _write(
    graph: ir.Graph,
    node: ir.Node,
    data: ir.Value,
    weight: ir.Value,
    shape: list[int],
    equation: _Equation,
) -> None:
    leading = (dims(data) or [])[: equation.batch]
    rows = [shape[axis] for axis in equation.summed]
    columns = [shape[axis] for axis in equation.made]

    def reshape(value: ir.Value, target: list[int], result: list[int | None]) -> ir.Value:
        to = add_constant(graph, np.asarray(target, np.int64), f"{node.name}/shape")
        return insert_before(node, new_node("Reshape", [value, to], origin=node, shape=result))

    perm = [*equation.summed, *equation.made]
    if perm != sorted(perm):
        moved = [shape[axis] for axis in perm]
        weight = insert_before(
            node, new_node("Transpose", [weight], {"perm": perm}, origin=node, shape=moved)
        )
    whole = [int(np.prod(rows)), int(np.prod(columns))]
    if len(perm) > 2:
        weight = reshape(weight, whole, list(whole))
    # In a Reshape, 0 copies the size of the axis.
    keep = [0] * equation.batch
    if len(rows) > 1:
        data = reshape(data, [*keep, whole[0]], [*leading, whole[0]])
    product = insert_before(
        node, new_node("MatMul", [data, weight], origin=node, shape=[*leading, whole[1]])
    )
    if len(columns) > 1:
        product = reshape(product, [*keep, *columns], [*leading, *columns])
    replace(node.outputs[0], product)
