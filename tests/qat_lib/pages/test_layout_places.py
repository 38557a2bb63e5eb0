"""The exact places of small layouts, in box widths and rows."""

from __future__ import annotations

from typing import Any

import pytest

from qat_lib.pages.layout import _LONGEST, _MOST_LANES, Layout, _Points, lay_out

Edges = list[tuple[int, int]]


def places(layout: Layout) -> tuple[list[float], list[int]]:
    return [x for x, _ in layout.boxes], [row for _, row in layout.boxes]


@pytest.mark.parametrize(
    ("count", "edges", "options", "xs", "rows", "width"),
    [
        (1, [], {}, [0.5], [0], 1.0),
        (2, [], {}, [0.5, 1.68], [0, 0], 2.18),
        (2, [(0, 1)], {}, [0.5, 0.5], [0, 1], 1.0),
        (3, [(0, 2), (1, 2)], {}, [0.5, 1.68, 1.09], [0, 0, 1], 2.18),
        (3, [(0, 2), (1, 2)], {"gap": 0.5}, [0.5, 2.0, 1.25], [0, 0, 1], 2.5),
        (
            3,
            [(0, 1), (1, 2), (0, 2)],
            {"gap": 0.1, "lane": 0.2},
            [0.85, 0.5, 0.85],
            [0, 1, 2],
            1.35,
        ),
        (4, [(0, 1), (0, 2), (0, 3)], {}, [1.68, 0.5, 1.68, 2.86], [0, 1, 1, 1], 3.36),
    ],
)
def test_places_of_boxes(
    count: int,
    edges: Edges,
    options: dict[str, Any],
    xs: list[float],
    rows: list[int],
    width: float,
) -> None:
    layout = lay_out(count, edges, **options)
    found, found_rows = places(layout)
    assert found == pytest.approx(xs, abs=1e-4)
    assert found_rows == rows
    assert layout.width == pytest.approx(width)
    assert layout.rows == max(rows) + 1


@pytest.mark.parametrize(
    ("edges", "rows"),
    [
        ([(0, 1), (1, 2), (2, 4), (3, 4)], [0, 1, 2, 2, 3]),
        ([(0, 1), (1, 2), (2, 4), (3, 4), (3, 2)], [0, 1, 2, 1, 3]),
        ([(0, 1), (1, 2), (0, 3), (3, 4), (2, 4)], [0, 1, 2, 1, 3]),
        ([(2, 4), (1, 2), (0, 1), (3, 4)], [0, 1, 2, 2, 3]),
        ([(0, 1), (1, 2), (2, 3), (0, 3), (4, 5)], [0, 1, 2, 3, 0, 1]),
    ],
)
def test_rows_lie_below_their_inputs(edges: Edges, rows: list[int]) -> None:
    assert places(lay_out(len(rows), edges))[1] == rows


def test_lanes_stand_beside_the_boxes_that_they_pass() -> None:
    layout = lay_out(4, [(0, 1), (1, 2), (2, 3), (0, 3)], gap=0.1, lane=0.2)
    assert layout.lanes[:3] == ((), (), ())
    assert layout.lanes[3] == ((1.2, 1), (1.2, 2))
    assert layout.boxes == ((0.85, 0), (0.5, 1), (0.5, 2), (0.85, 3))


#: Edges of networks with branches and edges over rows; the places to which the rows settle.
SETTLED: dict[str, tuple[Edges, list[float], dict[int, list[tuple[float, int]]], float]] = {
    "a wide tree": (
        [
            (0, 1),
            (0, 2),
            (2, 3),
            (1, 4),
            (1, 5),
            (2, 6),
            (4, 7),
            (4, 8),
            (6, 9),
            (8, 10),
            (9, 11),
            (1, 2),
            (1, 7),
        ],
        [2.565, 2.945, 1.605, 0.5, 3.125, 4.305, 1.68, 2.86, 4.04, 1.68, 4.04, 1.68],
        {1: [(2.185, 1)], 12: [(2.365, 2)]},
        4.805,
    ),
    "two parts that meet": (
        [
            (0, 1),
            (1, 2),
            (2, 3),
            (1, 4),
            (3, 5),
            (3, 6),
            (4, 7),
            (6, 8),
            (8, 9),
            (8, 10),
            (7, 11),
            (1, 2),
            (6, 7),
        ],
        [1.7433, 1.7433, 1.1533, 1.1533, 2.3333, 0.5067, 1.6867, 2.4667, 1.2867, 0.5, 1.68, 2.86],
        {6: [(2.3333, 3), (2.4467, 4)]},
        3.36,
    ),
    "a long way round": (
        [
            (0, 1),
            (0, 2),
            (2, 3),
            (0, 4),
            (3, 5),
            (5, 6),
            (5, 7),
            (7, 8),
            (6, 9),
            (6, 10),
            (9, 11),
            (1, 2),
            (4, 7),
        ],
        [1.54, 1.68, 2.06, 2.06, 0.5, 2.06, 2.26, 1.08, 0.6867, 1.8667, 3.0467, 1.8667],
        {1: [(2.44, 1)], 12: [(0.5, 2), (0.5, 3), (0.5, 4)]},
        3.5467,
    ),
}


@pytest.mark.parametrize("name", SETTLED)
def test_places_settle(name: str) -> None:
    edges, xs, lanes, width = SETTLED[name]
    layout = lay_out(len(xs), edges)
    assert places(layout)[0] == pytest.approx(xs, abs=1e-4)
    assert {number: list(found) for number, found in enumerate(layout.lanes) if found} == lanes
    assert layout.width == pytest.approx(width, abs=1e-4)


def test_edge_has_lane_in_each_row_between() -> None:
    points = _Points([0, 3, 1], 0.1, 0.2)
    assert points.connect(0, 1) == range(3, 5)
    assert points.row == [0, 3, 1, 1, 2]
    assert points.connect(0, 2) == range(5, 5)
    assert [points.width(point) for point in range(5)] == [1.0, 1.0, 1.0, 0.2, 0.2]


def test_lanes_stay_within_what_a_browser_draws() -> None:
    assert (_LONGEST, _MOST_LANES) == (400, 60_000)
    assert lay_out(0, []) == Layout(boxes=(), lanes=(), width=0.0, rows=0)
