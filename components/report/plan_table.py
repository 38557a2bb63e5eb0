"""The quantization plan as rows, each with its reason."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from qat_lib.core.plan import Consumer, QuantizerEntry
from qatline.components.report.sources import RunData


@dataclass(frozen=True, kw_only=True)
class PlanRow:
    """One quantizer of the plan."""

    name: str
    kind: str
    tensor: str
    consumers: tuple[str, ...]
    detail: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class SkippedRow:
    """One unquantized layer."""

    layer: str
    kind: str
    reason: str
    detail: str


def plan_rows(run: RunData) -> list[PlanRow]:
    """Return a row for each quantizer."""
    return [_row(entry) for entry in run.plan.quantizers]


def skipped_rows(run: RunData) -> list[SkippedRow]:
    """Return a row for each unquantized layer."""
    rows = []
    for skipped in run.plan.skipped:
        reason = skipped.reason.replace("_", " ")
        rows.append(
            SkippedRow(
                layer=skipped.layer, kind=skipped.class_name, reason=reason, detail=skipped.detail
            )
        )
    return rows


def skipped_summary(rows: list[SkippedRow]) -> str:
    """Return the number of occurrences of each reason, most frequent first."""
    return ", ".join(
        f"{count} × {reason}" for reason, count in Counter(row.reason for row in rows).most_common()
    )


def _row(entry: QuantizerEntry) -> PlanRow:
    return PlanRow(
        name=entry.name,
        kind=entry.kind,
        tensor=entry.tensor,
        consumers=tuple(map(_reader, entry.consumers)),
        detail=_detail(entry),
        reason=entry.reason,
    )


def _reader(consumer: Consumer) -> str:
    return f"{consumer.layer} (input {consumer.input})" if consumer.input else consumer.layer


def _detail(entry: QuantizerEntry) -> str:
    words = ["per tensor"]
    if entry.channel_axes is not None:
        words = [f"per channel, axis {', '.join(map(str, entry.channel_axes))}"]
    if entry.num_bits != 8:
        words.append(f"{entry.num_bits} bits")
    if entry.calibrator:
        words.append(entry.calibrator)
    if entry.kind != "weight":
        words.append(f"range {entry.range_policy}")
    if entry.group:
        words.append(f"tied group {entry.group}")
    return ", ".join(words)
