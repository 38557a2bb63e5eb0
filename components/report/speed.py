"""Latency, throughput and memory of each engine, by batch size."""

from __future__ import annotations

from dataclasses import dataclass

from qat_lib.pages import numbers
from qatline.components.artifacts.evaluation import BatchTiming, ResultRow
from qatline.components.artifacts.variants import in_order, row_title
from qatline.components.report.sources import RunData

MIB = 2**20


@dataclass(frozen=True, kw_only=True)
class SpeedRow:
    """One engine: median latency and throughput per batch size, and memory."""

    title: str
    cells: tuple[tuple[str, str], ...]
    memory: str


@dataclass(frozen=True, kw_only=True)
class SpeedTable:
    """The benchmarked engines and all of their batch sizes."""

    batches: tuple[int, ...]
    rows: tuple[SpeedRow, ...]


def speed_table(run: RunData) -> SpeedTable | None:
    """Return the table, or None without benchmarks."""
    latency = run.measurements.latency
    batches = sorted({timing.batch_size for timings in latency.values() for timing in timings})
    if not batches:
        return None
    rows = []
    for name in in_order(latency):
        timings = {timing.batch_size: timing for timing in latency[name]}
        rows.append(
            SpeedRow(
                title=row_title(name),
                cells=tuple(_cell(timings.get(size)) for size in batches),
                memory=_memory(run.measurements.row(name)),
            )
        )
    return SpeedTable(batches=tuple(batches), rows=tuple(rows))


def _cell(timing: BatchTiming | None) -> tuple[str, str]:
    if timing is None:
        return numbers.DASH, numbers.DASH
    return numbers.milliseconds(timing.end_to_end.p50), numbers.rate(timing.throughput)


def _memory(row: ResultRow) -> str:
    parts = (row.memory_mib, row.device_memory_mib)
    texts = [numbers.size(part * MIB) for part in parts if part is not None]
    if not texts:
        return numbers.DASH
    return " + ".join(texts) + (" on the device" if len(texts) > 1 else "")
