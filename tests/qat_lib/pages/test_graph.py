"""The picture of a graph: boxes, pills, wires, names."""

from __future__ import annotations

import pytest

from qat_lib.pages.graph import GraphEdge, GraphNode, GraphView, Pair, draw_graph

NODES = (
    GraphNode(title="x", kind="Input", output=Pair(name="x_q", amax=2.5)),
    GraphNode(title="stem", kind="Conv", precision="int8", int8_weight=True, details=("INT8",)),
    GraphNode(title="head", kind="MatMul", precision="float", severity="warning"),
)
EDGES = (
    GraphEdge(source=0, target=1, quantized=True),
    GraphEdge(source=0, target=2, quantized=False),
    GraphEdge(source=1, target=2, quantized=False),
)


@pytest.mark.parametrize(
    ("amax", "unsigned", "text"),
    [(2.5, False, "±2.50"), (5.02, True, "0…5.02"), (None, False, ""), (float("nan"), True, "")],
)
def test_pair_shows_its_range(amax: float | None, unsigned: bool, text: str) -> None:
    assert Pair(name="q", amax=amax, unsigned=unsigned).range() == text


def test_draw_graph_shows_nodes_pairs_and_wires() -> None:
    drawn = draw_graph(GraphView(nodes=NODES, edges=EDGES))
    assert drawn is not None
    assert drawn.count('class="pill"') == 1
    assert "Q/DQ ±2.50" in drawn
    assert drawn.count('class="wire plain"') == 2
    # The pill is on the wire of the quantized reader.
    assert drawn.count('class="wire quantized"') == 2
    assert drawn.count("W int8") == 1
    assert drawn.count('class="flag"') == 1
    assert '<g class="node float warning" id="node-2" tabindex="0" role="img">' in drawn
    assert "<title>x: Input\nQ/DQ pair: x_q, range ±2.500</title>" in drawn
    assert "<title>stem: Conv\nINT8</title>" in drawn


def test_draw_graph_leaves_out_empty_and_huge_graphs() -> None:
    assert draw_graph(GraphView()) is None
    assert draw_graph(GraphView(nodes=NODES[1:2] * 3000)) is not None
    assert draw_graph(GraphView(nodes=NODES[1:2] * 3001)) is None


def test_draw_graph_shortens_and_escapes_names() -> None:
    name = "<b>" + "block" * 10 + "_end"
    drawn = draw_graph(GraphView(nodes=(GraphNode(title=name, kind="Conv"),)))
    assert drawn is not None
    assert "&lt;b&gt;block" in drawn
    assert "<b>" not in drawn
    assert "…" in drawn
    assert f"{name.replace('<b>', '&lt;b&gt;')}: Conv" in drawn
