"""The layered layout: downwards, without overlap, mostly straight, bounded in size."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qat_lib.pages.layout import _LONGEST, _MOST_LANES, Layout, _Points, lay_out

GAP, LANE = 0.18, 0.16


def random_edges(count: int, seed: int) -> list[tuple[int, int]]:
    chance = random.Random(seed)
    edges = [(max(0, target - chance.randint(1, 4)), target) for target in range(1, count)]
    return edges + [(chance.randrange(target), target) for target in range(2, count, 5)]


def spans(layout: Layout) -> dict[int, list[tuple[float, float]]]:
    """Return the ordered left and right box and lane ends, by row."""
    rows: dict[int, list[tuple[float, float]]] = {}
    lanes = [place for chain in layout.lanes for place in chain]
    for places, width in ((layout.boxes, 1.0), (lanes, LANE)):
        for x, row in places:
            rows.setdefault(row, []).append((x - width / 2, x + width / 2))
    return {row: sorted(ends) for row, ends in rows.items()}


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 80), st.integers(0, 1000))
def test_layout_runs_downwards_without_overlap(count: int, seed: int) -> None:
    edges = random_edges(count, seed)
    layout = lay_out(count, edges, gap=GAP, lane=LANE)
    for (source, target), lanes in zip(edges, layout.lanes, strict=True):
        first, last = layout.boxes[source][1], layout.boxes[target][1]
        assert first < last
        assert [row for _, row in lanes] == list(range(first + 1, last))
    for ends in spans(layout).values():
        assert ends[0][0] >= -1e-3
        assert ends[-1][1] <= layout.width + 1e-3
        assert all(right[0] - left[1] >= GAP - 1e-3 for left, right in pairwise(ends))


def test_layout_of_a_chain_is_a_straight_line() -> None:
    layout = lay_out(5, [(i, i + 1) for i in range(4)])
    assert layout.boxes == tuple((0.5, row) for row in range(5))
    assert (layout.width, layout.rows) == (1.0, 5)


def test_layout_gives_long_edge_lanes() -> None:
    layout = lay_out(5, [*((i, i + 1) for i in range(4)), (0, 4)])
    assert len(layout.lanes[-1]) == 3
    assert {x for x, _ in layout.lanes[-1]}.isdisjoint({x for x, _ in layout.boxes})


def test_layout_puts_a_second_input_above_its_first_reader() -> None:
    layout = lay_out(4, [(0, 2), (2, 3), (1, 3)])
    assert [row for _, row in layout.boxes] == [0, 1, 1, 2]


def test_layout_of_branches_crosses_nothing() -> None:
    branches = [(0, 1), (0, 2), (0, 3), (1, 4), (2, 5), (3, 6), (4, 7), (5, 7), (6, 7)]
    layout = lay_out(8, branches)
    upper, lower = ([layout.boxes[box][0] for box in boxes] for boxes in ((1, 2, 3), (4, 5, 6)))
    assert upper == lower


def test_layout_of_nothing_is_empty() -> None:
    assert lay_out(0, []) == Layout(boxes=(), lanes=(), width=0.0, rows=0)


@pytest.mark.matrix
def test_layout_of_a_large_graph_is_bounded() -> None:
    layout = lay_out(10_000, random_edges(10_000, 1))
    assert len(layout.boxes) == 10_000
    assert sum(map(len, layout.lanes)) < 70_000


def test_points_give_lanes_until_they_are_too_many() -> None:
    """Boxes do not count: a wide network keeps its lanes."""
    points = _Points([0] * (_MOST_LANES // 2 + 1) + [3], GAP, LANE)
    assert len(points.connect(0, len(points.row) - 1)) == 2
    assert len(_Points([0, _LONGEST + 1], GAP, LANE).connect(0, 1)) == _LONGEST
    assert len(_Points([0, _LONGEST + 2], GAP, LANE).connect(0, 1)) == 0
