"""The result table and the headline figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from components.evaluation.rows import CANDIDATE, FP32_ENGINE, REFERENCE, ROWS
from components.gate import speedup
from components.report import numbers
from components.report.numbers import DASH, finite
from components.report.sources import RunData


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A formatted value and, from 0 to 1, how long its bar is; None draws no bar."""

    text: str
    bar: float | None = None
    tone: str = ""


@dataclass(frozen=True, kw_only=True)
class ResultRow:
    """One line of the result table."""

    name: str
    title: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One headline figure: a value, what it is, and what it is compared with."""

    title: str
    value: str
    detail: str
    tone: str = ""


def result_rows(run: RunData) -> list[ResultRow]:
    """Return the rows that were measured: the known ones first, then any other."""
    results = run.results
    names = [name for name in ROWS if name in results] + [
        name for name in results if name not in ROWS
    ]
    peaks = {
        key: max((finite(row.get(key)) or 0.0 for row in results.values()), default=0.0)
        for key in ("bytes", "latency_ms_p50", "latency_ms_p99", "throughput")
    }
    reference = finite(results.get(REFERENCE, {}).get("accuracy"))
    return [
        ResultRow(
            name=name,
            title=ROWS.get(name, name),
            cells=_cells(name, results[name], reference, peaks),
        )
        for name in names
    ]


def throughput_batch(run: RunData) -> str:
    """Return the batch size of the throughput column, or "" where no row says it."""
    sizes = {
        row.get("batch_size")
        for row in run.results.values()
        if finite(row.get("throughput")) is not None
    }
    return "/".join(str(size) for size in sorted(sizes, key=str) if size is not None)


def headline(run: RunData) -> list[Figure]:
    """Return the figures that a reader wants first; one that was not measured is left out."""
    results = run.results
    row, reference, engine = (results.get(name, {}) for name in (CANDIDATE, REFERENCE, FP32_ENGINE))
    figures = []
    accuracy, before = finite(row.get("accuracy")), finite(reference.get("accuracy"))
    if accuracy is not None:
        change = (
            ""
            if before is None
            else f"{numbers.points(accuracy - before)} against FP32 ({numbers.percent(before)})"
        )
        figures.append(Figure(title="Accuracy", value=numbers.percent(accuracy), detail=change))
    latency, factor = finite(row.get("latency_ms_p50")), speedup(row, engine)
    if latency is not None:
        detail = "" if factor is None else f"{numbers.ratio(factor)} the speed of the FP32 engine"
        figures.append(
            Figure(title="Median latency", value=numbers.milliseconds(latency), detail=detail)
        )
    rate, fp32_rate = finite(row.get("throughput")), finite(engine.get("throughput"))
    if rate is not None:
        batch = f"at batch {row.get('batch_size')}"
        detail = (
            f"{numbers.ratio(rate / fp32_rate)} the FP32 engine {batch}" if fp32_rate else batch
        )
        figures.append(Figure(title="Throughput", value=numbers.rate(rate), detail=detail))
    bytes_, fp32_bytes = (
        finite(row.get("bytes")),
        finite(engine.get("bytes")) or finite(reference.get("bytes")),
    )
    if bytes_ is not None:
        detail = (
            f"{numbers.ratio(bytes_ / fp32_bytes)} the FP32 engine ({numbers.size(fp32_bytes)})"
            if fp32_bytes
            else ""
        )
        figures.append(Figure(title="Engine file", value=numbers.size(bytes_), detail=detail))
    int8, weighted = finite(row.get("int8_layers")), finite(row.get("weighted_layers"))
    if int8 is not None and weighted:
        detail = f"weighted layers in INT8 ({numbers.percent(int8 / weighted, 0)}), as the engine reports"
        figures.append(Figure(title="INT8", value=f"{int8:.0f} of {weighted:.0f}", detail=detail))
    return figures


def _cells(
    name: str, row: Mapping[str, Any], reference: float | None, peaks: Mapping[str, float]
) -> tuple[Cell, ...]:
    accuracy = finite(row.get("accuracy"))
    change = (
        None if accuracy is None or reference is None or name == REFERENCE else accuracy - reference
    )

    def scaled(key: str, text: str) -> Cell:
        value = finite(row.get(key))
        return Cell(
            text=text, bar=value / peaks[key] if value is not None and peaks[key] > 0 else None
        )

    return (
        Cell(text=numbers.percent(accuracy)),
        Cell(
            text=numbers.points(change), tone="" if not change else "good" if change > 0 else "bad"
        ),
        scaled("bytes", numbers.size(row.get("bytes"))),
        scaled("latency_ms_p50", numbers.milliseconds(row.get("latency_ms_p50"))),
        scaled("latency_ms_p99", numbers.milliseconds(row.get("latency_ms_p99"))),
        scaled("throughput", numbers.rate(row.get("throughput"))),
        _layers(row),
    )


def _layers(row: Mapping[str, Any]) -> Cell:
    int8, weighted = finite(row.get("int8_layers")), finite(row.get("weighted_layers"))
    if int8 is None or weighted is None:
        return Cell(text=DASH)
    return Cell(
        text=f"{int8:.0f} of {weighted:.0f}", bar=int8 / weighted if weighted else None, tone="int8"
    )
