"""Render the report as a self-contained HTML file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from qat_lib.analysis.catalog import CATALOG
from qat_lib.analysis.findings import by_severity
from qat_lib.analysis.report import FusionReport
from qat_lib.pages.graph import draw_graph
from qat_lib.pages.html import render_page
from qat_lib.pages.numbers import percent


def to_html(report: FusionReport, *, figures: Sequence[Mapping[str, str]] = ()) -> str:
    """Return ``report`` as a self-contained HTML page.

    Args:
        report: the report.
        figures: further key figures for the head of the page, each with ``"title"``, ``"value"``
            and ``"detail"``.
    """
    nodes = list(report.drawing.nodes)
    rows = []
    for finding in by_severity(report.findings):
        title = CATALOG[finding.code].title
        rows.append({**finding.to_dict(), "about": title})
        place = report.drawing.find(finding.node, finding.keras_layer)
        if place is not None:
            # The first finding of a node is its most severe one.
            line = f"{finding.code} {finding.severity}: {title}"
            nodes[place] = replace(
                nodes[place],
                severity=nodes[place].severity or finding.severity,
                details=(*nodes[place].details, line),
            )
    view = replace(report.drawing, nodes=tuple(nodes))
    return render_page(
        Path(__file__).with_name("analysis.html.j2"),
        report=report,
        headline=[*figures, *_figures(report)],
        layers=[(layer, percent(layer.macs_share, 1)) for layer in report.layers],
        findings=rows,
        view=view,
        picture=draw_graph(view),
    )


def _figures(report: FusionReport) -> list[dict[str, str]]:
    """Return the key figures as title, value and detail."""
    summary = report.summary()
    conversions = ", ".join(f"{count} {kind}" for kind, count in summary["kernels"].items())
    figures = (
        (
            "INT8 layers",
            f"{report.int8_layers} of {len(report.layers)}",
            f"{percent(report.int8_macs_share, 1)} of the multiply-accumulates",
        ),
        (
            "Residual Adds fused",
            f"{report.fused_adds} of {summary['adds']}",
            f"{summary['int8_adds']} in INT8",
        ),
        ("Pools in INT8", f"{summary['int8_pools']} of {summary['pools']}", ""),
        (
            "Engine layers",
            str(len(report.engine)),
            f"stand-alone: {conversions or 'none'}; floating-point islands: {summary['islands']}",
        ),
        (
            "Findings",
            str(len(report.findings)),
            f"errors: {summary['errors']}, warnings: {summary['warnings']}, hints: {summary['infos']}",
        ),
    )
    return [dict(zip(("title", "value", "detail"), each, strict=True)) for each in figures]
