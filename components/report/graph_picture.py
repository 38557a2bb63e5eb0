"""Picture of the quantized graph: layers as boxes, Q/DQ pairs as pills."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from markupsafe import Markup

from qat_lib.analysis.layout import Place, lay_out
from qatline.components.report import svg
from qatline.components.report.graph_view import GraphEdge, GraphNode, GraphView

if TYPE_CHECKING:
    from qat_lib.engines.values import EngineLayer

_WIDTH, _HEIGHT, _ROW, _MARGIN = 196.0, 40.0, 104.0, 18.0
_PILL_WIDTH, _PILL_HEIGHT, _PILL_GAP = 96.0, 18.0, 8.0


def draw_graph(view: GraphView, engine: Mapping[str, str]) -> Markup:
    """Return the picture.

    Args:
        view: the graph.
        engine: precision of each ONNX node in the engine, by name; may be empty.
    """
    number = {node.key: index for index, node in enumerate(view.nodes)}
    layout = lay_out(
        len(number), [(number[edge.source], number[edge.target]) for edge in view.edges]
    )
    corners = {key: _corner(place) for key, place in zip(number, layout.boxes, strict=True)}
    width, height = (
        layout.width * _WIDTH + 2 * _MARGIN,
        layout.rows * _ROW - (_ROW - _HEIGHT) + 2 * _MARGIN,
    )
    nodes = {node.key: node for node in view.nodes}
    edges = [
        _edge(edge, lanes, corners, nodes)
        for edge, lanes in zip(view.edges, layout.lanes, strict=True)
    ]
    boxes = [
        _node(node, *corners[node.key], _engine_precision(node, engine)) for node in view.nodes
    ]
    quantized = sum(node.output is not None for node in view.nodes)
    label = f"Quantized graph: {len(view.nodes)} layers, {quantized} tensors with a Q/DQ pair."
    return svg.picture(
        width,
        height,
        svg.element("g", *edges),
        svg.element("g", *boxes),
        label=label,
        class_="graph",
        width=width,
        height=height,
    )


def _corner(place: Place) -> tuple[float, float]:
    """Return the upper left corner of a box, in pixels."""
    x, row = place
    return x * _WIDTH + _MARGIN - _WIDTH / 2, row * _ROW + _MARGIN


def _engine_precision(node: GraphNode, engine: Mapping[str, str]) -> str:
    found = [engine[name] for name in node.names if name in engine]
    return found[0] if found else ""


def _node(node: GraphNode, x: float, y: float, engine: str) -> Markup:
    tone = node.precision or "neutral"
    parts = [
        svg.element("title", _tooltip(node, engine)),
        svg.element("rect", x=x, y=y, width=_WIDTH, height=_HEIGHT, rx=7, class_="box"),
        svg.element("rect", x=x, y=y, width=5, height=_HEIGHT, rx=2.5, class_="edge-bar"),
        svg.text(x + 13, y + 17, _short(node.title, 23), class_="name"),
        svg.text(x + 13, y + 31, _short(node.kind, 32 if not node.weights else 24), class_="kind"),
    ]
    if node.weights:
        right = x + _WIDTH - 8
        parts.append(
            svg.element(
                "rect", x=right - 36, y=y + 21, width=36, height=14, rx=4, class_="weight-box"
            )
        )
        parts.append(
            svg.text(right - 18, y + 31.5, "W int8", text_anchor="middle", class_="weight")
        )
    if node.output is not None:
        parts.append(_pill(node, x, y))
    return svg.element(
        "g",
        *parts,
        class_=f"node {tone}",
        tabindex=0,
        data_name=node.title,
        data_detail=_tooltip(node, engine),
    )


def _pill(node: GraphNode, x: float, y: float) -> Markup:
    left, top = x + (_WIDTH - _PILL_WIDTH) / 2, y + _HEIGHT + _PILL_GAP
    middle = x + _WIDTH / 2
    label = f"Q/DQ {node.output.range() if node.output else ''}".rstrip()
    return svg.element(
        "g",
        svg.element("line", x1=middle, x2=middle, y1=y + _HEIGHT, y2=top, class_="wire quantized"),
        svg.element("rect", x=left, y=top, width=_PILL_WIDTH, height=_PILL_HEIGHT, rx=9),
        svg.text(middle, top + 12.5, label, text_anchor="middle"),
        class_="pill",
    )


def _edge(
    edge: GraphEdge,
    lanes: Sequence[Place],
    corners: Mapping[str, tuple[float, float]],
    nodes: Mapping[str, GraphNode],
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
    return svg.element(
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


def _tooltip(node: GraphNode, engine: str) -> str:
    lines = [f"{node.title}: {node.kind}"]
    if node.precision:
        lines.append("INT8" if node.precision == "int8" else "float: an operand is not quantized")
    if node.fused:
        lines.append(f"fused into the kernel of {node.fused}")
    if engine:
        lines.append(f"runs in {engine} in the engine")
    if node.weights:
        lines.append(f"weight: INT8, {node.weights} range{'s' if node.weights > 1 else ''}")
    if node.output is not None:
        known = "" if node.output.amax is None else f", range {node.output.range(4)}"
        lines.append(f"output: Q/DQ pair {node.output.name}{known}")
    return "\n".join(lines)


def _short(value: str, most: int) -> str:
    """Shorten in the middle: layer names of one block differ in their ends."""
    tail = most // 2
    return value if len(value) <= most else f"{value[: most - tail - 1]}…{value[-tail:]}"


def engine_precisions(layers: Iterable[EngineLayer]) -> dict[str, str]:
    """Return an engine's precision of each ONNX node by name."""
    found = {}
    for layer in layers:
        if layer.precision:
            found.update(dict.fromkeys(layer.nodes, layer.precision))
    return found
