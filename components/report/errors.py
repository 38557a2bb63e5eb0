"""What the engine gets wrong: confusion matrix, change per class, and the samples that moved most."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from components.evaluation.rows import CANDIDATE, REFERENCE
from components.report import numbers
from components.report.numbers import finite
from components.report.sources import RunData, as_mapping, as_rows

_MOST_CLASSES = 60
_MOST_SAMPLES = 24
_MOST_BYTES = 400_000


@dataclass(frozen=True, kw_only=True)
class ConfusionCell:
    """One count with its share of the true class; ``tone`` is ``hit`` on the diagonal, ``miss`` off it, or ``""``."""

    count: int
    share: float
    tone: str
    title: str


@dataclass(frozen=True, kw_only=True)
class ClassRow:
    """One class: accuracy in FP32 and INT8, and the change in percentage points."""

    name: str
    count: str
    before: str
    after: str
    change: str
    tone: str
    bar: float


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One picture of the test part as a data URL, and what was said about it."""

    source: str
    caption: str
    lines: tuple[str, ...]


def confusion_rows(run: RunData) -> list[list[ConfusionCell]]:
    """Return the matrix of the INT8 engine, a row for each true class; empty when it is missing or too large."""
    matrix = _matrix(run.evaluation.get("confusion"))
    if not matrix or len(matrix) > _MOST_CLASSES:
        return []
    names = class_names(run, len(matrix))
    rows = []
    for i, counts in enumerate(matrix):
        total = sum(counts) or 1
        rows.append(
            [
                ConfusionCell(
                    count=count,
                    share=count / total,
                    tone="" if not count else "hit" if i == j else "miss",
                    title=f"{count} of {sum(counts)} × {names[i]} read as {names[j]}",
                )
                for j, count in enumerate(counts)
            ]
        )
    return rows


def class_names(run: RunData, count: int) -> list[str]:
    """Return ``count`` class names; a number where the data set has none."""
    known = run.classes
    return [known[index] if index < len(known) else str(index) for index in range(count)]


def class_rows(run: RunData) -> list[ClassRow]:
    """Return the per-class accuracies, the greatest loss first."""
    entries = [entry for entry in _per_class(run) if entry[2] is not None or entry[3] is not None]
    changes = [
        abs(after - before)
        for _, _, before, after in entries
        if before is not None and after is not None
    ]
    peak = max(changes, default=0.0) or 1.0
    rows = []
    for name, count, before, after in entries:
        change = None if before is None or after is None else after - before
        rows.append(
            (
                change if change is not None else 0.0,
                ClassRow(
                    name=name,
                    count="" if count is None else f"{count:.0f}",
                    before=numbers.percent(before, 1),
                    after=numbers.percent(after, 1),
                    change=numbers.points(change),
                    tone="" if not change else "good" if change > 0 else "bad",
                    bar=abs(change or 0.0) / peak,
                ),
            )
        )
    return [row for _, row in sorted(rows, key=lambda item: item[0])]


def samples(run: RunData) -> list[Sample]:
    """Return the worst samples that have a readable picture."""
    found = []
    for item in as_rows(run.evaluation.get("worst_samples"))[:_MOST_SAMPLES]:
        source = _data_url(run.folders.evaluation, item)
        if source is not None:
            found.append(_sample(run, item, source))
    return found


def _sample(run: RunData, item: Mapping[str, Any], source: str) -> Sample:
    lines = [
        f"{title}: {_name(run, item[key])}"
        for title, key in (("FP32", "fp32"), ("INT8", "engine"))
        if key in item
    ]
    difference = finite(item.get("difference"))
    if difference is not None:
        lines.append(f"probability moved by {numbers.significant(difference, 2)}")
    return Sample(source=source, caption=_name(run, item.get("label", "?")), lines=tuple(lines))


def _name(run: RunData, label: Any) -> str:
    known = run.classes
    if isinstance(label, int) and not isinstance(label, bool) and 0 <= label < len(known):
        return known[label]
    return str(label)


def _data_url(folder: Path, item: Mapping[str, Any]) -> str | None:
    name = item.get("file")
    if not isinstance(name, str):
        return None
    path = (folder / name).resolve()
    # The name comes from a file: it must not reach out of the step's directory.
    if (
        not path.is_relative_to(folder.resolve())
        or not path.is_file()
        or path.stat().st_size > _MOST_BYTES
    ):
        return None
    content = path.read_bytes()
    if not content.startswith(b"\x89PNG\r\n\x1a\n"):
        return None
    return "data:image/png;base64," + base64.b64encode(content).decode("ascii")


def _matrix(value: Any) -> list[list[int]]:
    matrix = as_mapping(value).get(CANDIDATE)
    if not isinstance(matrix, list) or not all(
        isinstance(row, list) and len(row) == len(matrix) for row in matrix
    ):
        return []
    return [[int(finite(count) or 0) for count in row] for row in matrix]


def _per_class(run: RunData) -> list[tuple[str, float | None, float | None, float | None]]:
    """Return (class, samples, FP32 accuracy, INT8 accuracy)."""
    rows = as_rows(run.evaluation.get("per_class"))
    names = class_names(run, len(rows))
    found = []
    for name, row in zip(names, rows, strict=True):
        accuracy = as_mapping(row.get("accuracy"))
        before, after = finite(accuracy.get(REFERENCE)), finite(accuracy.get(CANDIDATE))
        found.append(
            (_name(run, row.get("class", name)), finite(row.get("samples")), before, after)
        )
    return found
