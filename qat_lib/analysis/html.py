"""The report as one HTML file: the graph to zoom and search, without network and without a server."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

from qat_lib.analysis.drawing import Drawing
from qat_lib.analysis.findings import CATALOG
from qat_lib.analysis.layout import lay_out
from qat_lib.analysis.report import FusionReport

_PLACE = "/*DATA*/null"


def to_html(report: FusionReport) -> str:
    """Return a self-contained page that shows ``report``; any browser opens it from disk."""
    page = files("qat_lib.analysis").joinpath("viewer", "viewer.html").read_text(encoding="utf-8")
    # In a script element only "</" and "<!--" could end or confuse the data.
    data = json.dumps(_data(report), separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return page.replace(_PLACE, data)


def _data(report: FusionReport) -> dict[str, Any]:
    drawing = report.drawing
    layout = lay_out(len(drawing.boxes), [(edge.source, edge.target) for edge in drawing.edges])
    shares = {layer.name: layer.macs_share for layer in report.layers}
    return {
        "model": report.model,
        "summary": report.summary(),
        "titles": {code: kind.title for code, kind in CATALOG.items()},
        "kernels": [kernel.name for kernel in report.engine],
        "boxes": [
            [
                *(box.name, box.op, box.keras_layer, box.precision, int(box.writes_float), box.kernel, box.shape),
                *(shares.get(box.name), x, y),
            ]
            for box, (x, y) in zip(drawing.boxes, layout.boxes, strict=True)
        ],
        "edges": [
            [edge.source, edge.target, _number(edge.scale), edge.quantizer, *sum(bends, ())]
            for edge, bends in zip(drawing.edges, layout.bends, strict=True)
        ],
        "findings": _findings(report, drawing),
    }


def _findings(report: FusionReport, drawing: Drawing) -> list[dict[str, Any]]:
    return [{**finding.to_dict(), "box": drawing.box_of(finding)} for finding in report.findings]


def _number(scale: float | None) -> float | str | None:
    """A scale that is no number (the parser rules report it) is shown as text; JSON has no NaN."""
    if scale is None:
        return None
    return scale if scale == scale and abs(scale) != float("inf") else str(scale)
