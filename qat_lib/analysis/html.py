"""Render the report as a self-contained HTML file."""

from __future__ import annotations

import json
from importlib.resources import files
from itertools import chain
from typing import Any

from qat_lib.analysis.catalog import CATALOG
from qat_lib.analysis.drawing import Box, Drawing, Edge
from qat_lib.analysis.layout import Place, lay_out
from qat_lib.analysis.report import FusionReport

_PLACE = "/*DATA*/null"
# Width of a box, gap between boxes and distance of rows in the drawing, in pixels at zoom 1.
_BOX, _GAP, _ROW = 172.0, 28.0, 84.0


def to_html(report: FusionReport) -> str:
    """Return ``report`` as a self-contained HTML page."""
    page = files("qat_lib.analysis").joinpath("viewer", "viewer.html").read_text(encoding="utf-8")
    # In a script element only "</" and "<!--" could end or confuse the data.
    data = json.dumps(_data(report), separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return page.replace(_PLACE, data)


def _data(report: FusionReport) -> dict[str, Any]:
    drawing = report.drawing
    ends = [(edge.source, edge.target) for edge in drawing.edges]
    layout = lay_out(len(drawing.boxes), ends, gap=_GAP / _BOX, lane=0.0)
    shares = {layer.name: layer.macs_share for layer in report.layers}
    return {
        "model": report.model,
        "target": report.target,
        "note": report.target_note,
        "summary": report.summary(),
        "titles": {code: rule.title for code, rule in CATALOG.items()},
        "kernels": [kernel.name for kernel in report.engine],
        "boxes": [
            [*_box(box), shares.get(box.name), *_pixels(place)]
            for box, place in zip(drawing.boxes, layout.boxes, strict=True)
        ],
        "edges": [
            [*_edge(edge), *chain.from_iterable(map(_pixels, lanes))]
            for edge, lanes in zip(drawing.edges, layout.lanes, strict=True)
        ],
        "findings": _findings(report, drawing),
    }


def _box(box: Box) -> tuple[Any, ...]:
    return (
        box.name,
        box.op,
        box.keras_layer,
        box.precision,
        int(box.writes_float),
        box.kernel,
        box.shape,
    )


def _edge(edge: Edge) -> tuple[Any, ...]:
    return edge.source, edge.target, _number(edge.scale), edge.quantizer


def _pixels(place: Place) -> tuple[float, float]:
    x, row = place
    return round(x * _BOX, 1), row * _ROW


def _findings(report: FusionReport, drawing: Drawing) -> list[dict[str, Any]]:
    return [{**finding.to_dict(), "box": drawing.box_of(finding)} for finding in report.findings]


def _number(scale: float | None) -> float | str | None:
    """Return a non-finite scale as text, since JSON has no NaN.

    The parser rules report such a scale.
    """
    if scale is None:
        return None
    return scale if scale == scale and abs(scale) != float("inf") else str(scale)
