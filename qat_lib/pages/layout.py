"""Layered graph layout: rows by longest path, few crossings, straight edges.

The method is that of Sugiyama, Tagawa and Toda (1981). An edge across rows gets a lane in each of
them. Rows are ordered by the mean position of the neighbours, and positions approach that mean as
far as the widths allow. Units are one box width and one row.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

_SWEEPS = 6
# Longer edges, and all edges beyond this number of lanes, are single curves: lanes cost time.
_LONGEST, _MOST_LANES = 400, 60_000

Place = tuple[float, int]


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Places ``(x, row)`` in units of one box's width and one row.

    Attributes:
        boxes: centre of each box.
        lanes: places of each edge in the rows between its ends, from top to bottom.
        width: span of x, starting at 0.
        rows: number of rows.
    """

    boxes: tuple[Place, ...]
    lanes: tuple[tuple[Place, ...], ...]
    width: float
    rows: int


def lay_out(
    count: int, edges: Sequence[tuple[int, int]], *, gap: float = 0.18, lane: float = 0.16
) -> Layout:
    """Place ``count`` boxes in topological order, and edges ``(source, target)``.

    Args:
        count: number of boxes; box ``i`` is number ``i`` in ``edges``.
        edges: pairs of numbers, the source less than the target.
        gap: least space between neighbours in a row, in box widths. Default 0.18.
        lane: width of a lane, in box widths. Default 0.16.
    """
    points = _Points(_rows(count, edges), gap, lane)
    chains = [points.connect(source, target) for source, target in edges]
    points.settle()
    left, right = points.span()
    places = [(round(x - left, 4), row) for x, row in zip(points.x, points.row, strict=True)]
    return Layout(
        boxes=tuple(places[:count]),
        lanes=tuple(tuple(places[chain.start : chain.stop]) for chain in chains),
        width=right - left,
        rows=max(points.row, default=-1) + 1,
    )


def _rows(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """Return the row of each box, below all its sources; inputs are right above a reader."""
    rows = [0] * count
    ordered = sorted(edges, key=lambda edge: edge[1])
    for source, target in ordered:
        rows[target] = max(rows[target], rows[source] + 1)
    first_reader: dict[int, int] = {}
    for source, target in ordered:
        first_reader[source] = min(first_reader.get(source, rows[target]), rows[target])
    inputs = first_reader.keys() - {target for _, target in ordered}
    for box in inputs:
        rows[box] = first_reader[box] - 1
    return rows


class _Points:
    """Boxes, then lanes: the row, neighbours and place of each."""

    def __init__(self, rows: Sequence[int], gap: float, lane: float) -> None:
        self.row = list(rows)
        self.x: list[float] = []
        self._boxes = len(rows)
        self._gap = gap
        self._lane = lane
        self._above: dict[int, list[int]] = defaultdict(list)
        self._below: dict[int, list[int]] = defaultdict(list)

    def connect(self, source: int, target: int) -> range:
        """Add an edge and return its lanes."""
        between = range(self.row[source] + 1, self.row[target])
        if len(between) > _LONGEST or len(self.row) - self._boxes > _MOST_LANES:
            between = range(0)
        lanes = range(len(self.row), len(self.row) + len(between))
        self.row.extend(between)
        for upper, lower in pairwise((source, *lanes, target)):
            self._above[lower].append(upper)
            self._below[upper].append(lower)
        return lanes

    def width(self, point: int) -> float:
        return 1.0 if point < self._boxes else self._lane

    def span(self) -> tuple[float, float]:
        """Return the left and right border of all points."""
        edges: list[float] = []
        for point, x in enumerate(self.x):
            half = self.width(point) / 2
            edges.extend((x - half, x + half))
        return min(edges, default=0.0), max(edges, default=0.0)

    def settle(self) -> None:
        """Place every point: one pass down, then alternately up and down."""
        order: list[list[int]] = [[] for _ in range(max(self.row, default=-1) + 1)]
        for point, row in enumerate(self.row):
            order[row].append(point)
        self.x = [0.0] * len(self.row)
        for points in order:
            self._spread(points, self._wanted(points, self._above))
        # A fixed number of sweeps: the ordering need not converge and may oscillate.
        for sweep in range(_SWEEPS):
            upwards = sweep % 2 == 0
            neighbours = self._below if upwards else self._above
            for points in reversed(order) if upwards else order:
                wanted = self._wanted(points, neighbours)
                points.sort(key=lambda point: (wanted[point], self.x[point]))
                self._spread(points, wanted)

    def _wanted(self, points: Sequence[int], neighbours: dict[int, list[int]]) -> dict[int, float]:
        """Return the mean position of each point's neighbours, or its own without neighbours."""
        wanted = {}
        for point in points:
            places = [self.x[other] for other in neighbours.get(point, ())]
            wanted[point] = sum(places) / len(places) if places else self.x[point]
        return wanted

    def _spread(self, points: Sequence[int], wanted: dict[int, float]) -> None:
        """Place the points of a row as near to their targets as widths allow.

        The algorithm is known as pool adjacent violators.
        """
        groups: list[_Group] = []
        for point in points:
            group = _Group(wanted[point], [(point, 0.0)])
            while groups:
                distance = (self.width(groups[-1].last) + self.width(group.first)) / 2 + self._gap
                if groups[-1].end + distance <= group.start:
                    break
                group = groups.pop().join(group, distance)
            groups.append(group)
        for group in groups:
            for point, offset in group.points:
                self.x[point] = group.start + offset


@dataclass(frozen=True)
class _Group:
    """Touching neighbours in a row: position of the first, offset of each point from it."""

    start: float
    points: list[tuple[int, float]]

    @property
    def first(self) -> int:
        return self.points[0][0]

    @property
    def last(self) -> int:
        return self.points[-1][0]

    @property
    def end(self) -> float:
        return self.start + self.points[-1][1]

    def join(self, other: _Group, distance: float) -> _Group:
        """Merge ``other`` in, at the mean of all points' targets."""
        # Least squares: the group's best start is the mean of the targets less the offsets.
        shift = self.points[-1][1] + distance
        total = self.start * len(self.points) + (other.start - shift) * len(other.points)
        self.points.extend([(point, offset + shift) for point, offset in other.points])
        return _Group(total / len(self.points), self.points)
