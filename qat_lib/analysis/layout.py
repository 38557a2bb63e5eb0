"""Where the boxes of a drawing go: layers by longest path, then few crossings, then straight lines.

The layered layout of Sugiyama, Tagawa and Toda (1981): long edges get a bend in every layer that they cross, layers are
ordered by the mean position of their neighbours, and positions follow the neighbours as far as boxes leave room.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

#: Distance of layers, and of boxes and bends in a layer, in pixels at zoom 1.
ROW, COLUMN, BEND = 84.0, 200.0, 28.0
_SWEEPS = 6
#: An edge over more layers than this, or any edge when there are this many bends, is drawn as one curve.
_LONGEST, _MOST_BENDS = 400, 60_000


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Positions of box centres, and for each edge the bends between its ends."""

    boxes: tuple[tuple[float, float], ...]
    bends: tuple[tuple[tuple[float, float], ...], ...]


def lay_out(count: int, edges: Sequence[tuple[int, int]]) -> Layout:
    """Place ``count`` boxes in topological order and the edges ``(source, target)`` between them."""
    rows = _rows(count, edges)
    row_of = list(rows)
    chains: list[list[int]] = []
    for source, target in edges:
        between: range | tuple[()] = range(rows[source] + 1, rows[target])
        if len(between) > _LONGEST or len(row_of) - count > _MOST_BENDS:
            between = ()
        chain = list(range(len(row_of), len(row_of) + len(between)))
        row_of.extend(between)
        chains.append(chain)
    points = list(range(len(row_of)))
    above: dict[int, list[int]] = defaultdict(list)
    below: dict[int, list[int]] = defaultdict(list)
    for (source, target), chain in zip(edges, chains, strict=True):
        path = [source, *chain, target]
        for upper, lower in pairwise(path):
            above[lower].append(upper)
            below[upper].append(lower)
    layers: dict[int, list[int]] = defaultdict(list)
    for point in points:
        layers[row_of[point]].append(point)
    order = [layers[row] for row in sorted(layers)]
    x = _positions(order, above, below, count)
    return Layout(
        boxes=tuple((round(x[box], 1), row_of[box] * ROW) for box in range(count)),
        bends=tuple(tuple((round(x[point], 1), row_of[point] * ROW) for point in chain) for chain in chains),
    )


def _rows(count: int, edges: Iterable[tuple[int, int]]) -> list[int]:
    rows = [0] * count
    for source, target in sorted(edges, key=lambda edge: edge[1]):
        rows[target] = max(rows[target], rows[source] + 1)
    return rows


def _positions(
    order: list[list[int]], above: dict[int, list[int]], below: dict[int, list[int]], count: int
) -> dict[int, float]:
    x: dict[int, float] = {}
    for layer in order:
        _spread(layer, x, count, {point: _mean(above[point], x) for point in layer})
    for sweep in range(_SWEEPS):
        neighbours = below if sweep % 2 == 0 else above
        for layer in reversed(order) if sweep % 2 == 0 else order:
            wanted = {point: _mean(neighbours[point], x, x[point]) for point in layer}
            layer.sort(key=lambda point: (wanted[point], x[point]))
            _spread(layer, x, count, wanted)
    return x


def _mean(neighbours: list[int], x: dict[int, float], default: float = 0.0) -> float:
    known = [x[point] for point in neighbours if point in x]
    return sum(known) / len(known) if known else default


def _spread(layer: list[int], x: dict[int, float], count: int, wanted: dict[int, float]) -> None:
    """Put the points of a layer as near to where they want to be as their widths allow."""
    groups: list[tuple[float, list[tuple[int, float]]]] = []  # mean of where its points want to begin, points, offsets
    for point in layer:
        group = [(point, 0.0)]
        start = wanted[point]
        while groups:
            last_start, last = groups[-1]
            end_point, end_offset = last[-1]
            gap = _gap(end_point, group[0][0], count)
            if last_start + end_offset + gap <= start:
                break
            groups.pop()
            shift = end_offset + gap
            total = last_start * len(last) + (start - shift) * len(group)
            last.extend([(member, offset + shift) for member, offset in group])
            group = last
            start = total / len(group)
        groups.append((start, group))
    for start, group in groups:
        for point, offset in group:
            x[point] = start + offset


def _gap(left: int, right: int, count: int) -> float:
    half = COLUMN / 2, BEND / 2
    return half[left >= count] + half[right >= count]
