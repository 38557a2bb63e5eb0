"""Write nearest-neighbour upsampling, which Keras spells as repeats of each axis, as one Resize.

UpSampling2D reaches ONNX as Unsqueeze, Tile and Reshape for each axis of an NHWC image, between two transposes. A
Resize copies the same values, takes NCHW, and is what engines have a kernel for, in INT8 too.
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
from qat_lib.export.passes.shape_arithmetic import Extent, extents


@lowering_pass
def use_nearest_resize(model: ir.Model) -> None:
    """Replace repeats of the image axes of a channels-last tensor by ``Transpose -> Resize -> Transpose``."""
    for node in list(model.graph):
        source, size = operand(node, 0), rank(operand(node, 0))
        if node.graph is not model.graph or source is None or size is None or size < 4:
            continue
        factors, last = [1] * size, None
        found = _repeat(node, size)
        while found is not None:
            axis, times, last = found
            factors[axis] *= times
            following = [reader for reader in consumers(last.outputs[0]) if not is_op(reader, "Shape")]
            inner = len(following) == 1 and not last.outputs[0].is_graph_output()
            found = _repeat(following[0], size) if inner else None
        if last is not None and factors[0] == factors[-1] == 1:
            _write(model.graph, source, factors, last)


def _repeat(node: ir.Node, size: int) -> tuple[int, int, ir.Node] | None:
    """Return axis, count and last node of ``Unsqueeze -> Tile -> Reshape`` that repeats each element along an axis."""
    axes = constant(operand(node, 1))
    tile = only_consumer(node.outputs[0]) if is_op(node, "Unsqueeze") else None
    reshape = only_consumer(tile.outputs[0]) if tile is not None and is_op(tile, "Tile") else None
    times = None if tile is None else constant(operand(tile, 1))
    if axes is None or axes.size != 1 or times is None or reshape is None:
        return None
    axis = int(axes.reshape(())) % (size + 1) - 1
    if not is_op(reshape, "Reshape") or axis < 0 or times.size != size + 1:
        return None
    count = int(times[axis + 1])
    others = np.delete(times, axis + 1)
    if np.any(others != 1) or not _is_repeated(node, reshape, axis, count):
        return None
    return axis, count, reshape


def _is_repeated(first: ir.Node, reshape: ir.Node, axis: int, count: int) -> bool:
    """Whether the Reshape gives the first operator's input with one axis ``count`` times as long."""
    source = operand(first, 0)
    before, after = dims(source), dims(reshape.outputs[0])
    if source is None or before is None or after is None:
        return False
    expected = [d * count if i == axis and d is not None else d for i, d in enumerate(before)]
    if before[axis] is not None and after == expected and expected.count(None) <= 1:
        return True
    target = extents(operand(reshape, 1), source)
    if target is None or len(target) != len(before):
        return False
    computed = [Extent(count if i == axis else 1, i) for i in range(len(before))]
    return all(x == y or x == Extent(size or 0) for x, y, size in zip(target, computed, expected, strict=True))


def _write(graph: ir.Graph, source: ir.Value, factors: list[int], last: ir.Node) -> None:
    size = len(factors)
    first, back = [0, size - 1, *range(1, size - 1)], [0, *range(2, size), 1]
    shape, result = dims(source) or [], last.outputs[0].shape
    image = new_node("Transpose", [source], {"perm": first}, origin=last, shape=[shape[i] for i in first])
    scales = add_constant(graph, np.asarray([factors[i] for i in first], np.float32), f"{last.name}/scales")
    resize = new_node(
        "Resize",
        [insert_before(last, image), None, scales],
        {"mode": "nearest", **_sampling(factors)},
        origin=last,
        shape=None if result is None else [result[i] for i in first],
    )
    end = new_node("Transpose", [insert_before(last, resize)], {"perm": back}, origin=last, shape=result)
    replace(last.outputs[0], insert_before(last, end))


def _sampling(factors: list[int]) -> dict[str, str]:
    """Return how positions are mapped: as everyone writes it where that is exact, else clear of the rounding."""
    if all(factor & (factor - 1) == 0 for factor in factors):
        return {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    return {"coordinate_transformation_mode": "half_pixel", "nearest_mode": "round_prefer_floor"}
