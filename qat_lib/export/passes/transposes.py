"""Helpers of passes that move a Transpose: permuted shapes, constants and pads.

Permutations follow Transpose: output axis i is input axis ``perm[i]``.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from qat_lib.export.graph import (
    add_constant,
    attribute,
    constant,
    insert_before,
    is_op,
    new_node,
    operand,
    producer,
    rank,
    scalar,
)


def inverse(perm: list[int]) -> list[int]:
    """Return the inverse of ``perm``."""
    return [perm.index(i) for i in range(len(perm))]


def transposed_from(value: ir.Value | None) -> tuple[ir.Value, list[int]] | None:
    """Return the input and the permutation of the Transpose that writes ``value``, else None."""
    node = producer(value)
    if not is_op(node, "Transpose"):
        return None
    source, perm = node.inputs[0], attribute(node, "perm")
    return None if source is None or perm is None else (source, perm)


def permutation(value: ir.Value | None) -> list[int] | None:
    """Return the permutation of the Transpose that writes ``value``, else None."""
    found = transposed_from(value)
    return None if found is None else found[1]


def permuted_shape(value: ir.Value, perm: list[int]) -> ir.Shape | None:
    """Return the shape of ``value`` permuted by ``perm``; None if unknown."""
    return None if value.shape is None else ir.Shape([value.shape[axis] for axis in perm])


def _permute_constant(graph: ir.Graph, value: ir.Value, perm: list[int]) -> ir.Value:
    """Return a constant operand with axes permuted by ``perm``, broadcasting as before."""
    array = constant(value)
    if array is None or array.size == 1:
        return value
    # Broadcasting aligns the last axes, so the missing first ones are added before the permutation.
    full = array.reshape((1,) * (len(perm) - array.ndim) + array.shape)
    return add_constant(graph, full.transpose(perm), value.name or "constant")


def permute_pads(graph: ir.Graph, pads: np.ndarray, perm: list[int], name: str) -> ir.Value:
    """Return the widths of a Pad permuted by ``perm``."""
    # ONNX lists the pads in front of all axes, then those behind.
    return add_constant(graph, pads.reshape(2, len(perm))[:, perm].ravel(), name)


def has_many_scales(node: ir.Node) -> bool:
    """Return whether a node is a per-channel Q or DQ."""
    return is_op(node, "QuantizeLinear", "DequantizeLinear") and scalar(operand(node, 1)) is None


def graph_of(node: ir.Node) -> ir.Graph:
    """Return the graph of a node."""
    if not isinstance(node.graph, ir.Graph):
        raise TypeError("The node belongs to no graph.")
    return node.graph


def put_behind(node: ir.Node, perm: list[int]) -> None:
    """Insert ``Transpose(perm)`` behind each output of ``node``."""
    for output in node.outputs:
        transpose = new_node(
            "Transpose",
            [output],
            {"perm": perm},
            origin=node,
            shape=output.shape,
            dtype=output.dtype,
        )
        result = transpose.outputs[0]
        result.name, output.name = output.name, None
        output.replace_all_uses_with(result, replace_graph_outputs=True)
        # Only now: `replace_all_uses_with` would have replaced this use, too.
        transpose.replace_input_with(0, output)
        output.shape = permuted_shape(output, inverse(perm))
        graph_of(node).insert_after(node, transpose)


def put_in_front(node: ir.Node, index: int, perm: list[int]) -> None:
    """Replace an operand of ``node`` by its form in front of ``Transpose(perm)``."""
    value, back = node.inputs[index], inverse(perm)
    if value is None or rank(value) == 0:
        return
    found = transposed_from(value)
    if found is not None and found[1] == perm:
        node.replace_input_with(index, found[0])
    elif constant(value) is not None:
        node.replace_input_with(index, _permute_constant(graph_of(node), value, back))
    else:
        shape = permuted_shape(value, back)
        early = new_node(
            "Transpose", [value], {"perm": back}, origin=node, shape=shape, dtype=value.dtype
        )
        node.replace_input_with(index, insert_before(node, early))
