"""The quantization plan as rows, each with its reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from components.report.sources import RunData, as_rows


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
    """One layer that the plan leaves alone."""

    layer: str
    kind: str
    reason: str
    detail: str


def plan_rows(run: RunData) -> list[PlanRow]:
    """Return a row for each quantizer."""
    return [_row(item) for item in as_rows(run.plan.get("quantizers"))]


def skipped_rows(run: RunData) -> list[SkippedRow]:
    """Return a row for each layer that gets no quantizer."""
    return [
        SkippedRow(
            layer=str(item.get("layer", "")),
            kind=str(item.get("class", "")),
            reason=str(item.get("reason", "")).replace("_", " "),
            detail=str(item.get("detail") or ""),
        )
        for item in as_rows(run.plan.get("skipped"))
    ]


def skipped_summary(rows: list[SkippedRow]) -> str:
    """Return how often each reason occurs, the commonest first."""
    return ", ".join(
        f"{count} × {reason}" for reason, count in Counter(row.reason for row in rows).most_common()
    )


def _row(item: Mapping[str, Any]) -> PlanRow:
    consumers = tuple(
        f"{reader.get('layer')}" + (f" (input {reader['input']})" if reader.get("input") else "")
        for reader in as_rows(item.get("consumers"))
    )
    return PlanRow(
        name=str(item.get("name", "")),
        kind=str(item.get("kind", "")),
        tensor=str(item.get("tensor", "")),
        consumers=consumers,
        detail=_detail(item),
        reason=str(item.get("reason", "")),
    )


def _detail(item: Mapping[str, Any]) -> str:
    axes = item.get("channel_axes", item.get("axis"))
    words = ["per tensor" if axes is None else f"per channel, axis {_axes(axes)}"]
    if (bits := item.get("num_bits", item.get("bits", 8))) != 8:
        words.append(f"{bits} bits")
    if item.get("calibrator"):
        words.append(str(item["calibrator"]))
    if item.get("kind") != "weight" and item.get("range_policy"):
        words.append(f"range {item['range_policy']}")
    if item.get("group"):
        words.append(f"tied group {item['group']}")
    return ", ".join(words)


def _axes(axes: object) -> str:
    return ", ".join(map(str, axes)) if isinstance(axes, list | tuple) else str(axes)
