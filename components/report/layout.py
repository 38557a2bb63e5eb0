"""A layered layout (Sugiyama et al. 1981): rows by longest path, few crossings, straight lines where possible.

Pure arithmetic on ids, so that it can be tested without a picture. An edge that passes rows gets one invisible node in
each of them, and so a lane of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

_SWEEPS = 8
_LANE = 0.16


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Places in units of one node's width and one row.

    Args:
        place: Centre x and row of each node.
        routes: The lanes of each edge between its ends: (x, row), from top to bottom.
        width: Span of x, which starts at 0.
        rows: Number of rows.
    """

    place: Mapping[str, tuple[float, int]]
    routes: Sequence[tuple[tuple[float, int], ...]]
    width: float
    rows: int


def layered(nodes: Sequence[str], edges: Sequence[tuple[str, str]], gap: float = 0.18) -> Layout:
    """Lay out an acyclic graph from top to bottom.

    Args:
        nodes: Ids in topological order.
        edges: (from, to); both ends must be in ``nodes``.
        gap: Least space between neighbours in a row, in node widths.
    """
    rank = _ranks(nodes, edges)
    chains = [_chain(index, source, target, rank) for index, (source, target) in enumerate(edges)]
    rank |= {name: row for chain in chains for name, row in chain[1:-1]}
    rows: list[list[str]] = [[] for _ in range(max(rank.values(), default=0) + 1)]
    for name, row in rank.items():
        rows[row].append(name)
    links = [pair for chain in chains for pair in pairwise(chain)]
    up: dict[str, list[str]] = {name: [] for name in rank}
    down: dict[str, list[str]] = {name: [] for name in rank}
    for (source, _), (target, _) in links:
        down[source].append(target)
        up[target].append(source)
    _order(rows, up, down)
    real = set(nodes)
    x = _coordinates(rows, up, down, {name: 1.0 if name in real else _LANE for name in rank}, gap)
    left = min((x[name] - 0.5 for name in nodes), default=0.0)
    left = min([left, *(x[name] - _LANE / 2 for name in rank if name not in real)])
    right = max((x[name] + (0.5 if name in real else _LANE / 2) for name in rank), default=0.0)
    return Layout(
        place={name: (x[name] - left, rank[name]) for name in nodes},
        routes=[tuple((x[name] - left, row) for name, row in chain[1:-1]) for chain in chains],
        width=right - left,
        rows=len(rows),
    )


def _ranks(nodes: Sequence[str], edges: Sequence[tuple[str, str]]) -> dict[str, int]:
    before: dict[str, list[str]] = {name: [] for name in nodes}
    after: dict[str, list[str]] = {name: [] for name in nodes}
    for source, target in edges:
        before[target].append(source)
        after[source].append(target)
    rank: dict[str, int] = {}
    for name in nodes:
        rank[name] = max((rank[source] + 1 for source in before[name]), default=0)
    # What has no input (a second input of the graph) stands right above its first reader, not at the top.
    for name in nodes:
        if not before[name] and after[name]:
            rank[name] = min(rank[target] for target in after[name]) - 1
    return rank


def _chain(index: int, source: str, target: str, rank: Mapping[str, int]) -> list[tuple[str, int]]:
    lanes = [(f"\0{index}.{row}", row) for row in range(rank[source] + 1, rank[target])]
    return [(source, rank[source]), *lanes, (target, rank[target])]


def _order(rows: list[list[str]], up: Mapping[str, list[str]], down: Mapping[str, list[str]]) -> None:
    """Sort each row by the mean position of its neighbours, downwards and upwards in turn."""
    for sweep in range(_SWEEPS):
        neighbours = up if sweep % 2 == 0 else down
        position = {name: float(index) for row in rows for index, name in enumerate(row)}
        for row in rows if sweep % 2 == 0 else reversed(rows):
            means = {
                name: sum(position[other] for other in neighbours[name]) / len(neighbours[name])
                if neighbours[name]
                else position[name]
                for name in row
            }
            row.sort(key=lambda name: means[name])
            position.update({name: float(index) for index, name in enumerate(row)})


def _coordinates(
    rows: list[list[str]],
    up: Mapping[str, list[str]],
    down: Mapping[str, list[str]],
    width: Mapping[str, float],
    gap: float,
) -> dict[str, float]:
    """Move each node towards its neighbours as far as its row lets it."""
    x: dict[str, float] = {}
    for row in rows:
        place = 0.0
        for name in row:
            x[name] = place + width[name] / 2
            place += width[name] + gap
    for sweep in range(2 * _SWEEPS):
        neighbours = up if sweep % 2 == 0 else down
        for row in rows if sweep % 2 == 0 else reversed(rows):
            wanted = [_median([x[other] for other in neighbours[name]], x[name]) for name in row]
            weights = [_pull(name, neighbours, width) for name in row]
            offsets, place = [], 0.0
            for name in row:
                offsets.append(place + width[name] / 2)
                place += width[name] + gap
            fitted = _isotonic([want - offset for want, offset in zip(wanted, offsets, strict=True)], weights)
            x.update({name: base + offset for name, base, offset in zip(row, fitted, offsets, strict=True)})
    return x


def _pull(name: str, neighbours: Mapping[str, list[str]], width: Mapping[str, float]) -> float:
    """A lane between two lanes must stay straight; a trunk outweighs what hangs on it."""
    lane = width[name] < 1.0
    return 4.0 if lane and all(width[other] < 1.0 for other in neighbours[name]) else 1.0


def _median(values: list[float], default: float) -> float:
    if not values:
        return default
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def _isotonic(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Return the non-decreasing sequence nearest to ``values`` in weighted squares (pool adjacent violators)."""
    blocks: list[tuple[float, float, int]] = []
    for value, weight in zip(values, weights, strict=True):
        mean, total, count = value, weight, 1
        while blocks and blocks[-1][0] > mean:
            other, mass, size = blocks.pop()
            mean = (mean * total + other * mass) / (total + mass)
            total, count = total + mass, count + size
        blocks.append((mean, total, count))
    return [mean for mean, _, count in blocks for _ in range(count)]
