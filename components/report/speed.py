"""Latency, throughput and memory of each engine, by batch size."""

from __future__ import annotations

from dataclasses import dataclass

from components.evaluation.rows import ROWS
from components.report import numbers
from components.report.numbers import finite
from components.report.sources import RunData, as_mapping, as_rows

MIB = 2**20


@dataclass(frozen=True, kw_only=True)
class SpeedRow:
    """One engine: a median latency and a throughput for each batch size, and its memory."""

    title: str
    cells: tuple[tuple[str, str], ...]
    memory: str


@dataclass(frozen=True, kw_only=True)
class SpeedTable:
    """The engines that were benchmarked, over the batch sizes that any of them was benchmarked at."""

    batches: tuple[int, ...]
    rows: tuple[SpeedRow, ...]


def speed_table(run: RunData) -> SpeedTable | None:
    """Return the table; None where no benchmark is on record."""
    measured = {
        name: {
            int(entry["batch_size"]): entry
            for entry in as_rows(value)
            if finite(entry.get("batch_size"))
        }
        for name, value in as_mapping(run.evaluation.get("latency")).items()
    }
    batches = tuple(sorted({size for entries in measured.values() for size in entries}))
    if not batches:
        return None
    names = [name for name in ROWS if name in measured] + [
        name for name in measured if name not in ROWS
    ]
    rows = []
    for name in names:
        entries = [measured[name].get(size, {}) for size in batches]
        cells = [
            (
                numbers.milliseconds(as_mapping(entry.get("end_to_end")).get("p50")),
                numbers.rate(entry.get("throughput")),
            )
            for entry in entries
        ]
        result = as_mapping(run.results.get(name))
        parts = [finite(result.get(key)) for key in ("memory_mib", "device_memory_mib")]
        memory = [numbers.size(part * MIB) for part in parts if part is not None]
        text = (
            " + ".join(memory) + (" on the device" if len(memory) > 1 else "")
            if memory
            else numbers.DASH
        )
        rows.append(SpeedRow(title=ROWS.get(name, name), cells=tuple(cells), memory=text))
    return SpeedTable(batches=batches, rows=tuple(rows))
