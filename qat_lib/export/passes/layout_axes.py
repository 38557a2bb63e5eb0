"""Move Squeeze and Unsqueeze above a Transpose.

Keras's one-dimensional layers use them: Unsqueeze to an image of height 1, convolution, Squeeze.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from qat_lib.export.graph import add_constant, constant, is_op, operand
from qat_lib.export.passes.transposes import graph_of, put_behind, transposed_from


def single_axis(node: ir.Node, size: int) -> int | None:
    """Return the single constant axis of a Squeeze or Unsqueeze, for a tensor of rank ``size``."""
    axes = constant(operand(node, 1))
    return int(axes.reshape(())) % size if axes is not None and axes.size == 1 else None


def squeeze_above(perm: list[int], axis: int) -> tuple[int, list[int]]:
    """Return the axis to drop before ``Transpose(perm)``, and the remaining permutation."""
    dropped = perm[axis]
    # Axes behind the dropped one move forward by one.
    return dropped, [p - (p > dropped) for i, p in enumerate(perm) if i != axis]


def unsqueeze_above(perm: list[int], axis: int) -> tuple[int, list[int]]:
    """Return the axis to add before ``Transpose(perm)``, and the permutation behind.

    The new axis keeps its right-hand neighbour: height 1 remains next to the width.
    """
    added = perm[axis] if axis < len(perm) else len(perm)
    moved = [p + (p >= added) for p in perm]
    return added, [*moved[:axis], added, *moved[axis:]]


def move_above(node: ir.Node) -> None:
    """Swap a Squeeze or Unsqueeze with the Transpose in front of it."""
    found = transposed_from(operand(node, 0))
    if found is None or node.outputs[0].is_graph_output():
        return
    source, perm = found
    grows = is_op(node, "Unsqueeze")
    axis = single_axis(node, len(perm) + grows)
    if axis is None:
        return
    moved, left = (unsqueeze_above if grows else squeeze_above)(perm, axis)
    node.replace_input_with(0, source)
    node.replace_input_with(
        1, add_constant(graph_of(node), np.asarray([moved], np.int64), f"{node.name}/axes")
    )
    put_behind(node, left)
