"""Merge a Reshape, Transpose and Reshape that move channels into an image to a DepthToSpace.

Super-resolution networks of Keras end like this, on channels in the last axis. The copies take
longer than the convolutions around them, and take the output out of the layout of their kernels.
"""

from __future__ import annotations

import onnx_ir as ir

from qat_lib.export.graph import (
    attribute,
    constant,
    dims,
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

INTERLEAVE = [0, 1, 3, 2, 4, 5]
"""Axes of (batch, height, width, block, block, channels) as (…, height, block, width, block, …)."""

FIRST, LAST = [0, 3, 1, 2], [0, 2, 3, 1]
"""Axes that move the channels in front of the image, and behind it."""


@lowering_pass
def merge_depth_to_space(model: ir.Model) -> None:
    """Compute blocks of channels as pixels by one node."""
    for node in list(model.graph):
        if not is_op(node, "Transpose") or attribute(node, "perm") != INTERLEAVE:
            continue
        split, join = producer(node.inputs[0]), only_consumer(node.outputs[0])
        if split is None or only_consumer(split.outputs[0]) is None or not is_op(join, "Reshape"):
            continue
        block, image, pixels = _block(split, join), operand(split, 0), join.outputs[0]
        if block is None or image is None or image.shape is None or pixels.shape is None:
            continue
        # With the shapes in between, for the layout passes.
        inner = [image.shape[axis] for axis in FIRST]
        first = new_node("Transpose", [image], {"perm": FIRST}, origin=join, shape=inner)
        moved = new_node(
            "DepthToSpace",
            [insert_before(join, first)],
            {"blocksize": block, "mode": "DCR"},
            origin=join,
            shape=[pixels.shape[axis] for axis in FIRST],
        )
        last = new_node(
            "Transpose",
            [insert_before(join, moved)],
            {"perm": LAST},
            origin=join,
            shape=pixels.shape,
        )
        replace(pixels, insert_before(join, last))


def _block(split: ir.Node, join: ir.Node) -> int | None:
    """Return the side of the blocks; None for other reshapes."""
    image, parts, joined = (
        dims(value) for value in (operand(split, 0), split.outputs[0], join.outputs[0])
    )
    if not is_op(split, "Reshape") or image is None or parts is None or joined is None:
        return None
    if (len(image), len(parts), len(joined)) != (4, 6, 4):
        return None
    block, other, channels = parts[3:]
    if block is None or block != other or channels is None:
        return None
    if (image[3], joined[3]) != (block * block * channels, channels):
        return None
    for axis in (1, 2):
        size = image[axis]
        if size is not None:
            fits = (parts[axis], joined[axis]) == (size, block * size)
        else:
            fits = _is_size(operand(split, 1), image=operand(split, 0), axis=axis) and _is_size(
                operand(join, 1), image=operand(split, 0), axis=axis, factor=block
            )
        if not fits:
            return None
    return block


def _is_size(
    target: ir.Value | None, *, image: ir.Value | None, axis: int, factor: int = 1
) -> bool:
    """Return whether an axis of a computed shape is that of an image, times a factor."""
    shape = _computed(target)
    if not is_op(shape, "Concat") or len(shape.inputs) <= axis:
        return False
    node = _computed(shape.inputs[axis])
    if factor != 1:
        if not is_op(node, "Mul") or scalar(node.inputs[1]) != factor:
            return False
        node = _computed(node.inputs[0])
    if not is_op(node, "Slice"):
        return False
    start = constant(operand(node, 1))
    read = _computed(node.inputs[0])
    is_axis = start is not None and start.tolist() == [axis]
    return is_axis and is_op(read, "Shape") and read.inputs[0] is image


def _computed(value: ir.Value | None) -> ir.Node | None:
    """Return the node that computes a size, behind conversions of type and rank."""
    node = producer(value)
    while is_op(node, "Cast", "Squeeze", "Unsqueeze"):
        node = producer(node.inputs[0])
    return node
