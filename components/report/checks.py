"""What was checked on the way: the exported graphs, their parity with Keras, and the fusion analysis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from components.report import numbers
from components.report.numbers import finite
from components.report.sources import RunData, as_mapping, as_rows


@dataclass(frozen=True, kw_only=True)
class ExportRow:
    """One exported ONNX file."""

    variant: str
    bytes: str
    seconds: str
    opset: str
    verification: str
    clean: bool
    parity: str


@dataclass(frozen=True, kw_only=True)
class FindingRow:
    """One finding about a graph."""

    variant: str
    code: str
    severity: str
    node: str
    message: str
    advice: str


def export_rows(run: RunData) -> list[ExportRow]:
    """Return a row for each exported variant."""
    rows = []
    for variant, value in run.export.items():
        facts = as_mapping(value)
        if not facts:
            continue
        checked = isinstance(facts.get("verification"), list)
        findings = as_rows(facts.get("verification"))
        text = (
            "not run"
            if not checked
            else "no findings"
            if not findings
            else f"{len(findings)} findings"
        )
        rows.append(
            ExportRow(
                variant=str(variant),
                bytes=numbers.size(facts.get("bytes")),
                seconds=numbers.seconds(facts.get("seconds")),
                opset=str(facts.get("opset", numbers.DASH)),
                verification=text,
                clean=checked and not findings,
                parity=_parity(as_mapping(facts.get("parity"))),
            )
        )
    return rows


def finding_rows(run: RunData) -> list[FindingRow]:
    """Return the findings of the verification and of the fusion analysis, errors first."""
    rows = [
        _finding(str(variant), item)
        for variant, value in run.export.items()
        for item in as_rows(as_mapping(value).get("verification"))
    ]
    rows += [_finding("analysis", item) for item in as_rows(run.analysis.get("findings"))]
    order = {"error": 0, "warning": 1, "info": 2}
    return sorted(rows, key=lambda row: order.get(row.severity, 0))


def _finding(variant: str, item: Mapping[str, Any]) -> FindingRow:
    return FindingRow(
        variant=variant,
        code=str(item.get("code") or item.get("rule") or ""),
        severity=str(item.get("severity") or "error"),
        node=str(item.get("keras_layer") or item.get("node") or ""),
        message=str(item.get("message", "")),
        advice=str(item.get("advice") or ""),
    )


def _parity(facts: Mapping[str, Any]) -> str:
    words = []
    difference = finite(facts.get("largest_difference"))
    if difference is not None:
        words.append(f"largest difference {numbers.significant(difference)}")
    samples, equal, ties = (finite(facts.get(name)) for name in ("samples", "labels_equal", "ties"))
    if equal is not None and samples:
        words.append(
            f"{equal:.0f} of {samples:.0f} labels equal" + (f", {ties:.0f} ties" if ties else "")
        )
    return "; ".join(words) or numbers.DASH
