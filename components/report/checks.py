"""Checks of the exported graphs, their parity with the model, and the fusion analysis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from qat_lib.pages import numbers
from qatline.components.artifacts.exported import FindingRecord, ParityRecord
from qatline.components.report.sources import RunData


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

    about: str
    code: str
    severity: str
    node: str
    keras_layer: str
    message: str
    advice: str


def export_rows(run: RunData) -> list[ExportRow]:
    """Return a row for each exported variant."""
    rows = []
    for variant, record in run.export.items():
        rows.append(
            ExportRow(
                variant=variant,
                bytes=numbers.size(record.bytes),
                seconds=numbers.seconds(record.seconds),
                opset=numbers.DASH if record.opset is None else str(record.opset),
                verification=_verification(record.verification),
                clean=record.verification is not None and not record.verification,
                parity=_parity(record.parity or ParityRecord()),
            )
        )
    return rows


def _verification(findings: Sequence[FindingRecord] | None) -> str:
    if findings is None:
        return "not run"
    return f"{len(findings)} findings" if findings else "no findings"


def finding_rows(run: RunData) -> list[FindingRow]:
    """Return the verification's and fusion analysis's findings, errors first."""
    rows = []
    for variant, record in run.export.items():
        rows += [_finding(variant, finding) for finding in record.verification or ()]
    rows += [_finding("analysis", finding) for finding in run.analysis.findings or ()]
    order = {"error": 0, "warning": 1, "info": 2}
    return sorted(rows, key=lambda row: order.get(row.severity, 0))


def _finding(variant: str, finding: FindingRecord) -> FindingRow:
    return FindingRow(
        about=variant,
        code=finding.code or finding.rule,
        severity=finding.severity or "error",
        node=finding.node,
        keras_layer=finding.keras_layer,
        message=finding.message,
        advice=finding.advice,
    )


def _parity(parity: ParityRecord) -> str:
    words = []
    if parity.largest_difference is not None:
        words.append(f"largest difference {numbers.significant(parity.largest_difference)}")
    if parity.labels_equal is not None and parity.samples:
        ties = f", {parity.ties:.0f} ties" if parity.ties else ""
        words.append(f"{parity.labels_equal:.0f} of {parity.samples:.0f} labels equal{ties}")
    return "; ".join(words) or numbers.DASH
