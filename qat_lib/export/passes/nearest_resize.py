"""Write nearest-neighbour upsampling as one Resize.

Keras repeats each axis. UpSampling2D is exported as Unsqueeze, Tile and Reshape for each axis of an
NHWC image, between two transposes. A Resize copies the same values in NCHW, and engines have a
kernel for it, in INT8 too.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from qat_lib.export.graph import (
    add_constant,
    constant,
    consumers,
    dims,
    insert_before,
    is_op,
    lowering_pass,
    new_node,
    only_consumer,
    operand,
    rank,
    replace,
)
from qat_lib.export.passes.layout_axes import single_axis
from qat_lib.export.passes.shape_arithmetic import Extent, extents
from qat_lib.export.passes.transposes import inverse, put_behind, put_in_front


@lowering_pass
def use_nearest_resize(model: ir.Model) -> None:
    """Replace repeats of a channels-last tensor's image axes by a Resize."""
    for node in list(model.graph):
        size = rank(operand(node, 0))
        if size is None or size < 4:
            continue
        factors, last = [1] * size, None
        found = _repeat(node, size)
        while found is not None:
            axis, times, last = found
            factors[axis] *= times
            readers = consumers(last.outputs[0])
            # A Shape reads the size only, for the target of the next Reshape.
            following = [reader for reader in readers if not is_op(reader, "Shape")]
            inner = len(following) == 1 and not last.outputs[0].is_graph_output()
            found = _repeat(following[0], size) if inner else None
        if last is not None and factors[0] == factors[-1] == 1:
            _write(model.graph, node.inputs[0], factors, last)


def _repeat(node: ir.Node, size: int) -> tuple[int, int, ir.Node] | None:
    """Return axis, count and last node of the repetition ``Unsqueeze -> Tile -> Reshape``."""
    source, tile = operand(node, 0), only_consumer(node.outputs[0])
    added = single_axis(node, size + 1) if is_op(node, "Unsqueeze") else None
    # Axis 0 would repeat the whole tensor instead of its elements.
    if source is None or not added or not is_op(tile, "Tile"):
        return None
    times, reshape = constant(operand(tile, 1)), only_consumer(tile.outputs[0])
    if times is None or np.any(np.delete(times, added) != 1) or not is_op(reshape, "Reshape"):
        return None
    axis, count = added - 1, int(times[added])
    return (axis, count, reshape) if _is_repeated(source, reshape, axis, count) else None


def _is_repeated(source: ir.Value, reshape: ir.Node, axis: int, count: int) -> bool:
    """Return whether the Reshape multiplies the size of one axis of ``source`` by ``count``."""
    before = dims(source) or []
    expected = [d * count if i == axis and d is not None else d for i, d in enumerate(before)]
    # One open axis follows from the others.
    if dims(reshape.outputs[0]) == expected and expected.count(None) <= 1:
        return True
    target = extents(operand(reshape, 1), source)
    if target is None or len(target) != len(before):
        return False
    computed = [Extent(count if i == axis else 1, i) for i in range(len(before))]
    return all(x in (computed[i], Extent(expected[i] or 0)) for i, x in enumerate(target))


def _write(graph: ir.Graph, source: ir.Value | None, factors: list[int], last: ir.Node) -> None:
    size, output = len(factors), last.outputs[0]
    first = [0, size - 1, *range(1, size - 1)]
    scales = add_constant(
        graph, np.asarray([factors[i] for i in first], np.float32), f"{last.name}/scales"
    )
    attributes = {"mode": "nearest", **_sampling(factors)}
    resize = new_node("Resize", [source, None, scales], attributes, origin=last, shape=output.shape)
    replace(output, insert_before(last, resize))
    put_in_front(resize, 0, inverse(first))
    put_behind(resize, inverse(first))


def _sampling(factors: list[int]) -> dict[str, str]:
    """Return the attributes for the mapping of positions."""
    if all(factor & (factor - 1) == 0 for factor in factors):
        # For powers of two, position / factor is exact in floating point, and floor gives the
        # source element; other factors could round down to the element before.
        return {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    return {"coordinate_transformation_mode": "half_pixel", "nearest_mode": "round_prefer_floor"}
