"""Charts of several runs: quality against latency or size, and overlaid curves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from qat_lib.pages import html
from qat_lib.pages.numbers import significant
from qatline.components.artifacts.evaluation import primary_metric
from qatline.components.artifacts.metric import Metric
from qatline.components.artifacts.variants import CANDIDATE_VARIANT, FP32_ENGINE, ROWS, Variant
from qatline.components.report.plot import Plot
from qatline.pipelines.comparison.tracked_runs import TrackedRun

# Number of colours in the page's style.
_COLORS = 8

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
    number: int = 0
    is_candidate: bool = False


def color_of(index: int) -> str:
    """Return the style class of a run's colour, by the position of the run."""
    return f"c{index % _COLORS}"


def cost_pictures(runs: Sequence[TrackedRun]) -> list[Picture]:
    """Return the primary metric against latency and against size, if measured.

    The QAT INT8 engines have the numbers of their runs, and a line joins their Pareto front.
    """
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
            is_candidate = row == CANDIDATE_VARIANT.row
            color = color_of(index)
            dots.append(
                _Dot(cost * scale, height, color, shape, text, index + 1, is_candidate=is_candidate)
            )
    return dots


def _cloud(title: str, dots: Sequence[_Dot], unit: str, metric: Metric) -> Markup:
    up = f"{metric.label}, %" if metric.share else metric.label
    plot = Plot([dot.x for dot in dots], [dot.y for dot in dots], across=unit, up=up)
    candidates = [dot for dot in dots if dot.is_candidate]
    points = [(dot.x, dot.y if metric.higher_is_better else -dot.y) for dot in candidates]
    front = sorted((candidates[index] for index in pareto_front(points)), key=lambda dot: dot.x)
    parts = [_front_line(front, plot)] if len(candidates) > 1 else []
    for index, dot in enumerate(dots):
        # Lower dots are larger: dots of equal runs remain visible.
        below = any((later.x, later.y) == (dot.x, dot.y) for later in dots[index + 1 :])
        scale = 1.6 if below else 1.0
        parts.append(_shape(dot, plot.x.at(dot.x), plot.y.at(dot.y), scale, marked=dot in front))
    # The front first: its numbers find room.
    rest = [dot for dot in candidates if dot not in front]
    parts += _numbers([*front, *rest], dots, plot)
    return plot.picture(*parts, label=f"{title}: " + "; ".join(dot.label for dot in dots))


def pareto_front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Return the positions of the points (cost, quality) that no other point dominates.

    A point dominates another if it is no worse in both values and better in one. Equal points of
    the front are all returned.

    Examples:
        >>> pareto_front([(1.0, 0.8), (2.0, 0.9), (2.0, 0.8)])
        [0, 1]
    """
    front = []
    for index, (cost, quality) in enumerate(points):
        is_dominated = any(
            other <= cost and better >= quality and (other, better) != (cost, quality)
            for other, better in points
        )
        if not is_dominated:
            front.append(index)
    return front


def _front_line(front: Sequence[_Dot], plot: Plot) -> Markup:
    """Return a line through the dots of the front, by cost."""
    places = [f"{plot.x.at(dot.x):.1f},{plot.y.at(dot.y):.1f}" for dot in front]
    return html.element("polyline", points=" ".join(places), class_="front")


# Width and height of a digit, and the room of a dot, in pixels.
_DIGIT, _HEIGHT, _REACH = 8.0, 13.0, 11.0


def _numbers(candidates: Sequence[_Dot], dots: Sequence[_Dot], plot: Plot) -> list[Markup]:
    """Return the numbers of the dots, without those that lack space."""
    taken = [
        (x - _REACH / 2, y - _REACH / 2, x + _REACH / 2, y + _REACH / 2)
        for x, y in ((plot.x.at(dot.x), plot.y.at(dot.y)) for dot in dots)
    ]
    parts = []
    for dot in candidates:
        x, y, width = plot.x.at(dot.x), plot.y.at(dot.y), _DIGIT * len(str(dot.number))
        # Right of the dot, left of it, above, below: the first free place.
        for left, base in (
            (x + _REACH, y + _HEIGHT / 2 - 1),
            (x - _REACH - width, y + _HEIGHT / 2 - 1),
            (x - width / 2, y - _REACH),
            (x - width / 2, y + _REACH + _HEIGHT - 2),
        ):
            box = (left, base - _HEIGHT, left + width, base)
            if all(
                box[2] <= other[0] or other[2] <= box[0] or box[3] <= other[1] or other[3] <= box[1]
                for other in taken
            ):
                taken.append(box)
                parts.append(html.text(left, base, dot.number, class_="number"))
                break
    return parts


def _overlay(name: str, runs: Sequence[TrackedRun]) -> Markup:
    lines = [(index, run) for index, run in enumerate(runs) if run.curves.get(name)]
    xs, ys = zip(*(point for _, run in lines for point in run.curves[name]), strict=True)
    title = curve_title(name)
    plot = Plot(xs, ys, across="epoch", up=title.rpartition(": ")[2], epochs=True)
    parts = []
    for place, (index, run) in enumerate(lines):
        # Lower lines are wider: lines of equal runs remain visible.
        width = 2.0 + 2.5 * min(len(lines) - 1 - place, 4)
        dots = [
            (epoch, value, f"{run.name}, epoch {epoch}: {significant(value, 4)}")
            for epoch, value in run.curves[name]
        ]
        parts.append(plot.line(dots, class_=f"run {color_of(index)}", width=width))
    label = f"{title} by epoch of " + ", ".join(run.name for _, run in lines)
    return plot.picture(*parts, label=label)


def _shape(dot: _Dot, x: float, y: float, scale: float, *, marked: bool) -> Markup:
    told = html.element("title", dot.label)
    kind = f"dot {dot.color}"
    if dot.shape == "circle":
        circle = html.element("circle", told, cx=x, cy=y, r=5.5 * scale, class_=kind)
        return html.element("g", circle, class_="best") if marked else circle
    corners = {
        "square": ((-5, -5), (5, -5), (5, 5), (-5, 5)),
        "diamond": ((0, -7), (7, 0), (0, 7), (-7, 0)),
        "hexagon": ((-6, 0), (-3, -5.2), (3, -5.2), (6, 0), (3, 5.2), (-3, 5.2)),
        "triangle": ((0, -6.5), (6.5, 5.5), (-6.5, 5.5)),
    }[dot.shape]
    places = [f"{x + across * scale:.1f},{y + down * scale:.1f}" for across, down in corners]
    return html.element("polygon", told, points=" ".join(places), class_=kind)
