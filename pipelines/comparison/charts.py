"""Charts of several runs: quality against latency or size, and overlaid curves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from qatline.components.artifacts.evaluation import primary_metric
from qatline.components.artifacts.metric import Metric
from qatline.components.artifacts.rows import FP32_ENGINE, ROWS
from qatline.components.artifacts.variants import CANDIDATE_VARIANT, Variant
from qatline.components.report import svg
from qatline.components.report.axis import Axis, log_axis, nice_axis
from qatline.components.report.numbers import significant
from qatline.pipelines.comparison.tracked_runs import TrackedRun

_WIDTH, _HEIGHT = 560.0, 300.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 68.0, 16.0, 14.0, 44.0
_LOG_RATIO = 50.0
_COLORS = 8
"""Number of colours in the page's style."""

SHAPES = {
    FP32_ENGINE: "square",
    Variant.FP16.row: "diamond",
    Variant.BF16.row: "hexagon",
    Variant.PTQ.row: "triangle",
    CANDIDATE_VARIANT.row: "circle",
}
"""Shape of a dot by its row."""


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A drawn chart and its caption."""

    title: str
    drawing: Markup


@dataclass(frozen=True)
class _Dot:
    x: float
    y: float
    color: str
    shape: str
    label: str


def color_of(index: int) -> str:
    """Return the style class of a run's colour, by the position of the run."""
    return f"c{index % _COLORS}"


def cost_pictures(runs: Sequence[TrackedRun]) -> list[Picture]:
    """Return the primary metric against latency and against size, if measured."""
    pictures = []
    metric = primary_metric({run.name: run.row(CANDIDATE_VARIANT.row) for run in runs})
    for title, figure, unit, scale in (
        (f"{metric.heading} against latency", "latency_ms_p50", "p50 at batch 1, ms", 1.0),
        (f"{metric.heading} against size", "bytes", "size, kB", 1e-3),
    ):
        dots = _dots(runs, figure, scale)
        if dots:
            pictures.append(Picture(title=title, drawing=_cloud(title, dots, unit, metric)))
    return pictures


def curve_pictures(runs: Sequence[TrackedRun]) -> list[Picture]:
    """Return one picture per curve, with one line per run."""
    names: list[str] = []
    for run in runs:
        names += [name for name in run.curves if name not in names]
    return [Picture(title=curve_title(name), drawing=_overlay(name, runs)) for name in names]


def curve_title(name: str) -> str:
    """Return the title of a curve, such as ``QAT: validation accuracy``."""
    step, _, figure = name.partition("/")
    stage = {"train_baseline": "FP32 baseline", "finetune_qat": "QAT"}.get(step, step)
    return f"{stage}: {figure.replace('val_', 'validation ')}"


def _dots(runs: Sequence[TrackedRun], figure: str, scale: float) -> list[_Dot]:
    dots = []
    for index, run in enumerate(runs):
        for row, shape in SHAPES.items():
            found = run.row(row)
            cost, value, metric = getattr(found, figure), found.value, found.metric
            if cost is None or value is None:
                continue
            text = f"{run.name}, {ROWS[row]}: {metric.text(value)}, {significant(cost * scale, 3)}"
            height = value * 100 if metric.share else value
            dots.append(_Dot(cost * scale, height, color_of(index), shape, text))
    return dots


def _cloud(title: str, dots: Sequence[_Dot], unit: str, metric: Metric) -> Markup:
    x_axis = _axis([dot.x for dot in dots], _LEFT, _WIDTH - _RIGHT)
    y_axis = nice_axis([dot.y for dot in dots], start=_HEIGHT - _BOTTOM, end=_TOP)
    parts = [_frame(x_axis, y_axis, unit, f"{metric.label}, %" if metric.share else metric.label)]
    for index, dot in enumerate(dots):
        # Lower dots are larger: dots of equal runs remain visible.
        below = any((later.x, later.y) == (dot.x, dot.y) for later in dots[index + 1 :])
        parts.append(_shape(dot, x_axis.at(dot.x), y_axis.at(dot.y), 1.6 if below else 1.0))
    label = f"{title}: " + "; ".join(dot.label for dot in dots)
    return svg.picture(_WIDTH, _HEIGHT, *parts, label=label, class_="chart")


def _overlay(name: str, runs: Sequence[TrackedRun]) -> Markup:
    lines = [(index, run) for index, run in enumerate(runs) if run.curves.get(name)]
    points = [point for _, run in lines for point in run.curves[name]]
    x_axis = nice_axis(
        (epoch for epoch, _ in points), start=_LEFT, end=_WIDTH - _RIGHT, ticks=8, whole=True
    )
    y_axis = _axis([value for _, value in points], _HEIGHT - _BOTTOM, _TOP)
    title = curve_title(name)
    parts = [_frame(x_axis, y_axis, "epoch", title.rpartition(": ")[2])]
    for place, (index, run) in enumerate(lines):
        # Lower lines are wider: lines of equal runs remain visible.
        width = 2.0 + 2.5 * min(len(lines) - 1 - place, 4)
        parts.append(_line(run, name, color_of(index), width, x_axis, y_axis))
    label = f"{title} by epoch of " + ", ".join(run.name for _, run in lines)
    return svg.picture(_WIDTH, _HEIGHT, *parts, label=label, class_="chart")


def _line(
    run: TrackedRun, name: str, color: str, width: float, x_axis: Axis, y_axis: Axis
) -> Markup:
    path: list[str] = []
    dots = []
    for epoch, value in run.curves[name]:
        x, y = x_axis.at(epoch), y_axis.at(value)
        path.append(f"{'L' if path else 'M'}{x:.1f},{y:.1f}")
        told = svg.element("title", f"{run.name}, epoch {epoch}: {significant(value, 4)}")
        dots.append(svg.element("circle", told, cx=x, cy=y, r=2.2))
    line = svg.element("path", d=" ".join(path), stroke_width=width)
    return svg.element("g", line, *dots, class_=f"run {color}")


def _axis(values: Sequence[float], start: float, end: float) -> Axis:
    """Return a logarithmic axis for positive values far apart, else a linear one."""
    if min(values) > 0 and max(values) / min(values) > _LOG_RATIO:
        return log_axis(values, start=start, end=end)
    return nice_axis(values, start=start, end=end)


def _frame(x_axis: Axis, y_axis: Axis, across: str, up: str) -> Markup:
    base, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    parts = []
    for tick in y_axis.ticks:
        y = y_axis.at(tick)
        parts.append(svg.element("line", x1=_LEFT, x2=right, y1=y, y2=y, class_="grid"))
        number = y_axis.label(tick)
        parts.append(svg.text(_LEFT - 8, y + 4, number, text_anchor="end", class_="tick"))
    for tick in x_axis.ticks:
        place, number = x_axis.at(tick), x_axis.label(tick)
        parts.append(svg.text(place, base + 18, number, text_anchor="middle", class_="tick"))
    parts.append(svg.element("line", x1=_LEFT, x2=right, y1=base, y2=base, class_="axis"))
    middle, height = (_LEFT + right) / 2, (_TOP + base) / 2
    kind = {"text_anchor": "middle", "class_": "axis-title"}
    parts.append(svg.text(middle, _HEIGHT - 6, _title(across, x_axis), **kind))
    turned = f"rotate(-90 12 {height})"
    parts.append(svg.text(12, height, _title(up, y_axis), transform=turned, **kind))
    return svg.element("g", *parts)


def _title(text: str, axis: Axis) -> str:
    return f"{text}, logarithmic" if axis.log else text


def _shape(dot: _Dot, x: float, y: float, scale: float) -> Markup:
    told = svg.element("title", dot.label)
    kind = f"dot {dot.color}"
    if dot.shape == "circle":
        return svg.element("circle", told, cx=x, cy=y, r=5.5 * scale, class_=kind)
    corners = {
        "square": ((-5, -5), (5, -5), (5, 5), (-5, 5)),
        "diamond": ((0, -7), (7, 0), (0, 7), (-7, 0)),
        "hexagon": ((-6, 0), (-3, -5.2), (3, -5.2), (6, 0), (3, 5.2), (-3, 5.2)),
        "triangle": ((0, -6.5), (6.5, 5.5), (-6.5, 5.5)),
    }[dot.shape]
    places = [f"{x + across * scale:.1f},{y + down * scale:.1f}" for across, down in corners]
    return svg.element("polygon", told, points=" ".join(places), class_=kind)
