"""Result table and headline metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from qat_lib.pages import numbers
from qat_lib.pages.numbers import DASH
from qatline.components.artifacts import ResultRow
from qatline.components.artifacts.metric import Metric
from qatline.components.artifacts.variants import (
    CANDIDATE,
    FP32_ENGINE,
    REFERENCE,
    in_order,
    row_title,
)
from qatline.components.evaluation.gate import speedup
from qatline.components.report.sources import RunData


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A formatted value and its bar length, 0 to 1 or None."""

    text: str
    bar: float | None = None
    tone: str = ""


@dataclass(frozen=True, kw_only=True)
class ResultLine:
    """One line of the result table."""

    name: str
    title: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One headline metric: value, meaning and comparison."""

    title: str
    value: str
    detail: str
    tone: str = ""


def result_lines(run: RunData) -> list[ResultLine]:
    """Return the measured rows: known rows first, then others."""
    rows = run.measurements.rows
    reference = run.measurements.row(REFERENCE).value
    peaks = _peaks(rows)
    lines = []
    for name in in_order(rows):
        before = None if name == REFERENCE else reference
        cells = _cells(rows[name], before, peaks)
        lines.append(ResultLine(name=name, title=row_title(name, rows[name].backend), cells=cells))
    return lines


def throughput_batch(run: RunData) -> str:
    """Return the throughput column's batch size; "" if no row has one."""
    measured = [row for row in run.measurements.rows.values() if row.throughput is not None]
    sizes = {row.batch_size for row in measured if row.batch_size is not None}
    return "/".join(str(size) for size in sorted(sizes))


def headline(run: RunData) -> list[Figure]:
    """Return the headline metrics, without unmeasured ones."""
    row, reference = run.measurements.row(CANDIDATE), run.measurements.row(REFERENCE)
    engine = run.measurements.row(FP32_ENGINE)
    figures = [
        _quality(row, reference),
        _latency(row, engine),
        _throughput(row, engine),
        _size(row, engine.bytes or reference.bytes),
        _int8(row),
    ]
    return [figure for figure in figures if figure is not None]


def _quality(row: ResultRow, reference: ResultRow) -> Figure | None:
    if row.value is None:
        return None
    detail, metric = "", row.metric
    if reference.value is not None:
        change = _difference(metric, row.value, reference.value)
        detail = f"{change} against FP32 ({quality(metric, reference.value)})"
    return Figure(title=metric.heading, value=quality(metric, row.value), detail=detail)


def quality(metric: Metric, value: float | None) -> str:
    """Return a value of a metric: a percentage for shares, else four digits."""
    return numbers.percent(value) if metric.share else numbers.significant(value, 4)


def _difference(metric: Metric, value: float, reference: float) -> str:
    if metric.share:
        return numbers.points(value - reference)
    return metric.change(value, reference).replace("-", "−")


def _latency(row: ResultRow, engine: ResultRow) -> Figure | None:
    if row.latency_ms_p50 is None:
        return None
    factor = speedup(row, engine)
    detail = "" if factor is None else f"{numbers.ratio(factor)} the speed of the FP32 engine"
    value = numbers.milliseconds(row.latency_ms_p50)
    return Figure(title="Median latency", value=value, detail=detail)


def _throughput(row: ResultRow, engine: ResultRow) -> Figure | None:
    if row.throughput is None:
        return None
    detail = f"at batch {row.batch_size}"
    if engine.throughput:
        factor = numbers.ratio(row.throughput / engine.throughput)
        detail = f"{factor} the FP32 engine {detail}"
    return Figure(title="Throughput", value=numbers.rate(row.throughput), detail=detail)


def _size(row: ResultRow, fp32_bytes: float | None) -> Figure | None:
    if row.bytes is None:
        return None
    detail = ""
    if fp32_bytes:
        factor = numbers.ratio(row.bytes / fp32_bytes)
        detail = f"{factor} the FP32 engine ({numbers.size(fp32_bytes)})"
    return Figure(title="Engine file", value=numbers.size(row.bytes), detail=detail)


def _int8(row: ResultRow) -> Figure | None:
    int8, weighted = row.int8_layers, row.weighted_layers
    if int8 is None or not weighted:
        return None
    share = numbers.percent(int8 / weighted, 0)
    detail = f"weighted layers in INT8 ({share}), as the engine reports"
    return Figure(title="INT8", value=f"{int8:.0f} of {weighted:.0f}", detail=detail)


def _peaks(rows: Mapping[str, ResultRow]) -> ResultRow:
    """Return the largest value of each column with bars."""
    found = rows.values()
    return ResultRow(
        bytes=max((row.bytes or 0 for row in found), default=0),
        latency_ms_p50=max((row.latency_ms_p50 or 0 for row in found), default=0),
        latency_ms_p99=max((row.latency_ms_p99 or 0 for row in found), default=0),
        throughput=max((row.throughput or 0 for row in found), default=0),
    )


def _cells(row: ResultRow, reference: float | None, peaks: ResultRow) -> tuple[Cell, ...]:
    p50, p99 = row.latency_ms_p50, row.latency_ms_p99
    return (
        Cell(text=quality(row.metric, row.value)),
        _change(row, reference),
        _scaled(numbers.size(row.bytes), row.bytes, peaks.bytes),
        _scaled(numbers.milliseconds(p50), p50, peaks.latency_ms_p50),
        _scaled(numbers.milliseconds(p99), p99, peaks.latency_ms_p99),
        _scaled(numbers.rate(row.throughput), row.throughput, peaks.throughput),
        _layers(row),
    )


def _change(row: ResultRow, reference: float | None) -> Cell:
    if row.value is None or reference is None:
        return Cell(text=DASH)
    loss = row.metric.loss(row.value, reference)
    tone = "good" if loss < 0 else "bad"
    text = _difference(row.metric, row.value, reference)
    return Cell(text=text, tone=tone if loss else "")


def _scaled(text: str, value: float | None, peak: float | None) -> Cell:
    return Cell(text=text, bar=value / peak if value is not None and peak else None)


def _layers(row: ResultRow) -> Cell:
    int8, weighted = row.int8_layers, row.weighted_layers
    if int8 is None or weighted is None:
        return Cell(text=DASH)
    bar = int8 / weighted if weighted else None
    return Cell(text=f"{int8:.0f} of {weighted:.0f}", bar=bar, tone="int8")
