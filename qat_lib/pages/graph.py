"""View of a quantized graph as layers and tensors, and its picture.

A layer is a box. A Q/DQ pair is a property of the tensor that it quantizes, and a pill under the
box that computes the tensor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from markupsafe import Markup

from qat_lib.pages import html
from qat_lib.pages.layout import Place, lay_out
from qat_lib.pages.numbers import finite, significant

_WIDTH, _HEIGHT, _ROW, _MARGIN = 196.0, 40.0, 104.0, 18.0
_PILL_WIDTH, _PILL_HEIGHT, _PILL_GAP = 96.0, 18.0, 8.0
# Largest graph with a picture: browsers scroll larger ones with delay.
_MOST_NODES = 3000


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A Q/DQ pair: graph name, largest magnitude, signedness of its integers."""

    name: str
    amax: float | None
    unsigned: bool = False

    def range(self, digits: int = 3) -> str:
        """Return the range as ``±2.5`` or ``0…6``; empty if unknown."""
        if finite(self.amax) is None:
            return ""
        return f"{'0…' if self.unsigned else '±'}{significant(self.amax, digits)}"


@dataclass(frozen=True, kw_only=True)
class GraphNode:
    """A layer of the picture.

    Args:
        title: name of the layer.
        kind: operation, such as ``Conv 3×3 /2 + Relu``.
        precision: ``int8`` or ``float``; ``""`` for inputs, outputs, and operations that only move
            data.
        int8_weight: whether it has a quantized weight.
        output: the pair on its output tensor, if any.
        names: names of its ONNX nodes.
        details: further lines about it.
        severity: worst severity of its findings; empty without findings.
    """

    title: str
    kind: str
    precision: str = ""
    int8_weight: bool = False
    output: Pair | None = None
    names: tuple[str, ...] = ()
    details: tuple[str, ...] = ()
    severity: str = ""

    @property
    def text(self) -> str:
        """All that is known about the layer, in lines."""
        lines = [f"{self.title}: {self.kind}", *self.details]
        if self.output is not None:
            known = self.output.range(4)
            lines.append(f"Q/DQ pair: {self.output.name}{known and f', range {known}'}")
        return "\n".join(lines)


@dataclass(frozen=True, kw_only=True)
class GraphEdge:
    """A tensor between two nodes, by position; ``quantized`` if it is read in INT8."""

    source: int
    target: int
    quantized: bool


@dataclass(frozen=True, kw_only=True)
class GraphView:
    """Nodes in topological order, the edges between them, and the node of each name.

    ``anchors`` has the names of ONNX nodes, quantizers included, and of layers.
    """

    nodes: tuple[GraphNode, ...] = ()
    edges: tuple[GraphEdge, ...] = ()
    anchors: Mapping[str, int] = field(default_factory=dict)

    def find(self, *names: str) -> int | None:
        """Return the position of the node of the first known name; its id is ``node-<position>``."""
        return next((self.anchors[name] for name in names if name in self.anchors), None)


def draw_graph(view: GraphView) -> Markup | None:
    """Return the picture of a graph, or None if the graph is empty or too large."""
    if not 0 < len(view.nodes) <= _MOST_NODES:
        return None
    layout = lay_out(len(view.nodes), [(edge.source, edge.target) for edge in view.edges])
    corners = [_corner(place) for place in layout.boxes]
    width = layout.width * _WIDTH + 2 * _MARGIN
    height = (layout.rows - 1) * _ROW + _HEIGHT + 2 * _MARGIN
    if any(node.output is not None for node in view.nodes):
        height += _PILL_GAP + _PILL_HEIGHT
    edges = [
        _edge(edge, lanes, corners, view.nodes)
        for edge, lanes in zip(view.edges, layout.lanes, strict=True)
    ]
    boxes = [
        _node(node, f"node-{position}", *corner)
        for position, (node, corner) in enumerate(zip(view.nodes, corners, strict=True))
    ]
    pairs = sum(node.output is not None for node in view.nodes)
    return html.picture(
        width,
        height,
        html.element("g", *edges),
        html.element("g", *boxes),
        label=f"Graph: {len(view.nodes)} boxes, {pairs} tensors with a Q/DQ pair.",
        role="group",
        class_="graph",
        width=width,
        height=height,
    )


def _corner(place: Place) -> tuple[float, float]:
    """Return the upper left corner of a box, in pixels."""
    x, row = place
    return x * _WIDTH + _MARGIN - _WIDTH / 2, row * _ROW + _MARGIN


def _node(node: GraphNode, id_: str, x: float, y: float) -> Markup:
    right = x + _WIDTH - 8
    parts = [
        html.element("title", node.text),
        html.element("rect", x=x, y=y, width=_WIDTH, height=_HEIGHT, rx=7, class_="box"),
        html.element("rect", x=x, y=y, width=5, height=_HEIGHT, rx=2.5, class_="edge-bar"),
        html.text(x + 13, y + 17, _short(node.title, 23), class_="name"),
        html.text(x + 13, y + 31, _short(node.kind, 22 if node.int8_weight else 32), class_="kind"),
    ]
    if node.int8_weight:
        box = {"width": 36, "height": 14, "rx": 4, "class_": "weight-box"}
        parts.append(html.element("rect", x=right - 36, y=y + 21, **box))
        parts.append(
            html.text(right - 18, y + 31.5, "W int8", text_anchor="middle", class_="weight")
        )
    if node.output is not None:
        left, top = x + (_WIDTH - _PILL_WIDTH) / 2, y + _HEIGHT + _PILL_GAP
        middle = x + _WIDTH / 2
        wire = {"x1": middle, "x2": middle, "y1": y + _HEIGHT, "y2": top}
        pill = {"x": left, "y": top, "width": _PILL_WIDTH, "height": _PILL_HEIGHT, "rx": 9}
        label = f"Q/DQ {node.output.range()}".rstrip()
        parts += [
            html.element("line", class_="wire quantized", **wire),
            html.element("rect", class_="pill", **pill),
            html.text(middle, top + 12.5, label, text_anchor="middle", class_="range"),
        ]
    if node.severity:
        parts.append(html.element("circle", cx=right, cy=y, r=9, class_="flag"))
        parts.append(html.text(right, y + 4, "!", text_anchor="middle", class_="flag-sign"))
    return html.element(
        "g",
        *parts,
        class_=f"node {node.precision or 'neutral'} {node.severity}".rstrip(),
        id=id_,
        tabindex=0,
        role="img",
    )


def _edge(
    edge: GraphEdge,
    lanes: Sequence[Place],
    corners: Sequence[tuple[float, float]],
    nodes: Sequence[GraphNode],
) -> Markup:
    x, y = corners[edge.source]
    start_x, start_y = x + _WIDTH / 2, y + _HEIGHT
    if nodes[edge.source].output is not None:
        if edge.quantized:
            start_y += _PILL_GAP + _PILL_HEIGHT
        else:
            # The float reader of a tensor that also has a pair leaves beside the pill, not through
            # it.
            start_x += _PILL_WIDTH / 2 + 12
    x, y = corners[edge.target]
    points = [(start_x, start_y)]
    for lane, row in lanes:
        top = row * _ROW + _MARGIN
        points += [
            (lane * _WIDTH + _MARGIN, top),
            (lane * _WIDTH + _MARGIN, top + _HEIGHT + _PILL_GAP + _PILL_HEIGHT),
        ]
    points.append((x + _WIDTH / 2, y))
    return html.element(
        "path", d=_curve(points), class_=f"wire {'quantized' if edge.quantized else 'plain'}"
    )


def _curve(points: list[tuple[float, float]]) -> str:
    """Return a path that leaves and reaches each point vertically."""
    path = f"M{points[0][0]:.1f},{points[0][1]:.1f}"
    for (x0, y0), (x1, y1) in pairwise(points):
        if abs(x1 - x0) < 0.5:
            path += f"L{x1:.1f},{y1:.1f}"
        else:
            middle = (y0 + y1) / 2
            path += f"C{x0:.1f},{middle:.1f} {x1:.1f},{middle:.1f} {x1:.1f},{y1:.1f}"
    return path


def _short(value: str, most: int) -> str:
    """Shorten in the middle: layer names of one block differ in their ends."""
    tail = most // 2
    return value if len(value) <= most else f"{value[: most - tail - 1]}…{value[-tail:]}"
