"""Render the report for the terminal with rich."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from qat_lib.analysis.catalog import CATALOG
from qat_lib.analysis.findings import Finding, by_severity
from qat_lib.analysis.report import FusionReport

_STYLE = {
    "error": "bold red",
    "warning": "yellow",
    "info": "dim",
    "int8": "green",
    "mixed": "yellow",
    "float": "red",
}


def render(report: FusionReport, *, all_findings: bool = False) -> RenderableType:
    """Return a report as a renderable for a rich Console.

    Args:
        report: the report.
        all_findings: whether to show every finding; by default one of each kind represents the
            others.
    """
    parts: list[RenderableType] = [_summary(report)]
    if report.layers:
        parts.append(_layers(report))
    if report.findings:
        parts.append(_findings(report.findings, all_findings=all_findings))
    parts.append(_verdict(report))
    if report.target_note:
        parts.append(Text(f"Note: {report.target_note}", "yellow"))
    return Group(*parts)


def _summary(report: FusionReport) -> Table:
    figures = report.summary()
    table = Table(title=escape(report.model) or None, show_header=False, title_justify="left")
    table.add_row("predicted for", report.target)
    table.add_row(
        "weighted layers in INT8",
        f"{figures['int8_layers']} of {figures['weighted_layers']} ({report.int8_macs_share:.1%} "
        "of the MACs)",
    )
    table.add_row(
        "residual Adds fused",
        f"{figures['fused_adds']} of {figures['adds']}, {figures['int8_adds']} in INT8",
    )
    table.add_row("pools in INT8", f"{figures['int8_pools']} of {figures['pools']}")
    kernels = ", ".join(f"{count} {kind}" for kind, count in figures["kernels"].items()) or "none"
    table.add_row("stand-alone kernels", kernels)
    table.add_row("floating-point islands", str(figures["islands"]))
    table.add_row("predicted engine layers", str(figures["engine_layers"]))
    return table


def _layers(report: FusionReport) -> Table:
    """Return the table of layers, with consecutive layers of equal verdict in one row."""
    table = Table(title="Weighted layers", title_justify="left")
    for heading in ("layers", "operator", "runs in", "writes", "MACs"):
        table.add_column(heading, justify="right" if heading == "MACs" else "left", overflow="fold")
    runs: list[tuple[tuple[str, str, str], list[str], float]] = []
    for layer in report.layers:
        runs_in = layer.precision if layer.precision != "float" else layer.float_type
        key = (layer.op_type, runs_in, layer.writes)
        if runs and runs[-1][0] == key:
            runs[-1][1].append(layer.keras_layer)
            runs[-1] = (key, runs[-1][1], runs[-1][2] + layer.macs_share)
        else:
            runs.append((key, [layer.keras_layer], layer.macs_share))
    for (op_type, runs_in, writes), names, share in runs:
        shown = names[0] if len(names) == 1 else f"{names[0]} ... {names[-1]} ({len(names)})"
        style = _STYLE.get(runs_in, _STYLE["float"])
        table.add_row(
            escape(shown),
            op_type,
            Text(runs_in, style),
            Text(writes, _STYLE[writes]),
            f"{share:.1%}",
        )
    return table


def _findings(findings: Iterable[Finding], *, all_findings: bool) -> Table:
    table = Table(title="Findings", title_justify="left", show_lines=True)
    table.add_column("code")
    # Bounded, so that long names do not squeeze the text at 80 columns.
    table.add_column("layer", overflow="fold", max_width=24)
    table.add_column("problem and remedy", overflow="fold")
    kinds: dict[tuple[str, str], list[Finding]] = defaultdict(list)
    for finding in by_severity(findings):
        kinds[finding.code, finding.severity].append(finding)
    for (code, severity), found in kinds.items():
        for finding in found if all_findings else found[:1]:
            text = Text.assemble(finding.message, "\n", (finding.advice, "italic"))
            if len(found) > 1 and not all_findings:
                text.append(f"\n... and {len(found) - 1} more: {_names(found[1:])}", "dim")
            table.add_row(
                Text(f"{code}\n{severity}", _STYLE[severity]),
                escape(finding.keras_layer or finding.node),
                text,
            )
    return table


def _names(findings: list[Finding], limit: int = 5) -> str:
    names = list(dict.fromkeys(finding.keras_layer or finding.node for finding in findings))
    return ", ".join(names[:limit]) + (", ..." if len(names) > limit else "")


def _verdict(report: FusionReport) -> Text:
    counts: list[str] = []
    found: list[str] = []
    for severity in ("error", "warning", "info"):
        count = report.count(severity)
        counts.append(f"{count} {severity}{'s' if count != 1 else ''}")
        if count:
            found.append(severity)
    style = _STYLE[found[0] if found else "int8"]
    return Text(f"{', '.join(counts)}. Codes: {', '.join(_titles(report)) or 'none'}", style)


def _titles(report: FusionReport) -> list[str]:
    codes = sorted({finding.code for finding in report.findings})
    return [f"{code} {CATALOG[code].title}" for code in codes]
