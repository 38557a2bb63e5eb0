"""Errors of the engine: confusion matrix or scatter plot, change per class, worst samples."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from qat_lib.pages import html, numbers
from qatline.components.artifacts.evaluation import WorstSample
from qatline.components.artifacts.variants import CANDIDATE, REFERENCE
from qatline.components.report.plot import Plot
from qatline.components.report.sources import RunData

_MOST_CLASSES = 60
_MOST_SAMPLES = 24
_MOST_BYTES = 400_000
_COLOR = re.compile("#[0-9a-f]{6}")


@dataclass(frozen=True, kw_only=True)
class ConfusionCell:
    """One count with its share of the true class.

    ``tone`` is ``hit`` on the diagonal, ``miss`` off it, or ``""``.
    """

    count: int
    share: float
    tone: str
    title: str


@dataclass(frozen=True, kw_only=True)
class ClassRow:
    """One class: FP32 and INT8 accuracy, change in percentage points."""

    name: str
    count: str
    before: str
    after: str
    change: str
    tone: str
    bar: float


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One test sample: its picture as a data URL, or an empty one, and its predictions."""

    source: str
    caption: str
    lines: tuple[str, ...]


def confusion_rows(run: RunData) -> list[list[ConfusionCell]]:
    """Return the INT8 engine's confusion matrix, one row per true class.

    The result is empty if the matrix is missing or too large.
    """
    matrix = run.measurements.details.get(CANDIDATE, {}).get("confusion", ())
    if not matrix or len(matrix) > _MOST_CLASSES:
        return []
    names = class_names(run, len(matrix))
    return [_confusion_row(counts, index, names) for index, counts in enumerate(matrix)]


def _confusion_row(counts: Sequence[int], true: int, names: Sequence[str]) -> list[ConfusionCell]:
    total = sum(counts)
    row = []
    for index, count in enumerate(counts):
        tone = "hit" if index == true else "miss"
        row.append(
            ConfusionCell(
                count=count,
                share=count / (total or 1),
                tone=tone if count else "",
                title=f"{count} of {total} × {names[true]} read as {names[index]}",
            )
        )
    return row


def class_names(run: RunData, count: int) -> list[str]:
    """Return ``count`` class names, with numbers for missing ones."""
    known = run.classes
    return [known[index] if index < len(known) else str(index) for index in range(count)]


def class_rows(run: RunData) -> list[ClassRow]:
    """Return the per-class accuracies, greatest loss first; unmeasured ones are dashes."""
    entries = _per_class(run)
    peak = max((abs(entry.change or 0.0) for entry in entries), default=0.0) or 1.0
    return [_class_row(entry, peak) for entry in sorted(entries, key=lambda e: e.change or 0.0)]


@dataclass(frozen=True, kw_only=True)
class _ClassChange:
    """Samples of a class, and its accuracies in FP32 and INT8."""

    name: str
    samples: float | None
    before: float | None
    after: float | None

    @property
    def change(self) -> float | None:
        if self.before is None or self.after is None:
            return None
        return self.after - self.before


def _class_row(entry: _ClassChange, peak: float) -> ClassRow:
    tone = "good" if (entry.change or 0.0) > 0 else "bad"
    return ClassRow(
        name=entry.name,
        count="" if entry.samples is None else f"{entry.samples:.0f}",
        before=numbers.percent(entry.before, 1),
        after=numbers.percent(entry.after, 1),
        change=numbers.points(entry.change),
        tone=tone if round(entry.change or 0.0, 4) else "",  # as shown
        bar=abs(entry.change or 0.0) / peak,
    )


def _per_class(run: RunData) -> list[_ClassChange]:
    found = []
    for row in run.measurements.groups:
        entry = _ClassChange(
            name=_name(run, row.name),
            samples=row.samples,
            before=row.values.get(REFERENCE),
            after=row.values.get(CANDIDATE),
        )
        found.append(entry)
    return found


def samples(run: RunData) -> list[Sample]:
    """Return the worst samples, without those whose picture is unreadable."""
    found = []
    for worst in run.measurements.worst_samples[:_MOST_SAMPLES]:
        source = _data_url(run.evaluation.path, worst.file) if worst.file else ""
        if source is not None:
            found.append(_sample(run, worst, source))
    return found


def _sample(run: RunData, worst: WorstSample, source: str) -> Sample:
    lines = []
    if worst.fp32 is not None:
        lines.append(f"FP32: {_name(run, worst.fp32)}")
    if worst.engine is not None:
        lines.append(f"INT8: {_name(run, worst.engine)}")
    if worst.difference is not None:
        lines.append(f"outputs changed by {numbers.significant(worst.difference, 2)}")
    return Sample(source=source, caption=_name(run, worst.label), lines=tuple(lines))


def _name(run: RunData, label: str | int) -> str:
    if isinstance(label, int) and 0 <= label < len(run.classes):
        return run.classes[label]
    return str(label)


def _data_url(folder: Path, name: str) -> str | None:
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


def task_curves(run: RunData) -> list[tuple[str, Markup]]:
    """Return the curves of the task by name, those of FP32 and the INT8 engine in one plot."""
    rows = ((REFERENCE, "baseline", "FP32"), (CANDIDATE, "qat", "QAT INT8"))
    found: dict[str, list[tuple[str, str, dict[str, Any]]]] = {}
    for row, class_, title in rows:
        for curve in run.measurements.details.get(row, {}).get("curves", ()):
            found.setdefault(str(curve["name"]), []).append((class_, title, curve))
    charts = []
    for name, curves in found.items():
        points = [point for _, _, curve in curves for point in curve["points"]]
        if not points:
            continue
        xs, ys = zip(*points, strict=True)
        first = curves[0][2]
        # Shares get the whole axis, so that plots of several classes are comparable.
        ends = [[min(0.0, *v), 1.0 if max(v) <= 1 else max(v)] for v in (xs, ys)]
        plot = Plot(*ends, across=str(first["across"]), up=str(first["up"]))
        lines = []
        for class_, title, curve in curves:
            told = [
                (x, y, f"{title}: {numbers.significant(y)} at {numbers.significant(x)}")
                for x, y in curve["points"]
            ]
            lines.append(plot.line(told, class_=f"series {class_} validation"))
        label = f"{name}: {first['up']} by {first['across']}"
        charts.append((name, plot.picture(*lines, label=label)))
    return charts


def picture_legend(run: RunData) -> tuple[list[str], dict[str, str]]:
    """Return the titles of a picture's parts from left to right, and the colours of the classes."""
    details = run.measurements.details.get(CANDIDATE, {})
    panels, given = details.get("panels", ()), details.get("colors", {})
    found = {str(name): str(color) for name, color in given.items()}
    return [str(title) for title in panels], {
        name: color for name, color in found.items() if _COLOR.fullmatch(color)
    }


def draw_scatter(run: RunData) -> Markup:
    """Return the INT8 engine's predictions against the targets, with the line of right ones.

    The result is empty for tasks without such pairs.
    """
    pairs = run.measurements.details.get(CANDIDATE, {}).get("pairs", ())
    if not pairs:
        return Markup("")
    values = [value for pair in pairs for value in pair]
    # Both axes have the same range, so that right predictions lie on the diagonal.
    plot = Plot(values, values, across="target", up="prediction")
    ends = [(value, value, numbers.significant(value)) for value in (min(values), max(values))]
    dots = []
    for target, prediction in pairs:
        told = f"target {numbers.significant(target)}, prediction {numbers.significant(prediction)}"
        place = {"cx": plot.x.at(target), "cy": plot.y.at(prediction)}
        dots.append(
            html.element("circle", html.element("title", told), r=3.0, class_="scatter", **place)
        )
    label = f"Predictions of {len(pairs)} test samples against their targets"
    return plot.picture(plot.line(ends, class_="diagonal"), *dots, label=label)
