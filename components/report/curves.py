"""Training curves: baseline epochs, then fine-tuning epochs on one axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from qatline.components.artifacts.metric import ACCURACY, Metric
from qatline.components.artifacts.models import Epoch
from qatline.components.report import svg
from qatline.components.report.axis import Axis, log_axis, nice_axis
from qatline.components.report.numbers import significant

_WIDTH, _HEIGHT = 560.0, 280.0
# Minimum ratio of the largest to the smallest value for a logarithmic axis.
_LOG_RATIO = 50.0
_MOST_DOTS = 30
_LEFT, _RIGHT, _TOP, _BOTTOM = 52.0, 14.0, 20.0, 44.0


@dataclass(frozen=True, kw_only=True)
class Series:
    """One line: (epoch on the common time line, value) in order.

    Args:
        phase: ``baseline`` or ``qat``; determines the colour.
        part: ``training`` or ``validation``; dashed or solid.
    """

    phase: str
    part: str
    points: tuple[tuple[float, float], ...]

    @property
    def label(self) -> str:
        """Text of the legend."""
        return f"{'FP32 baseline' if self.phase == 'baseline' else 'QAT'}, {self.part}"


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A drawn chart with the data of its caption and table."""

    title: str
    picture: Markup
    series: tuple[Series, ...]


def training_charts(
    baseline: Sequence[Epoch], qat: Sequence[Epoch], metric: Metric = ACCURACY
) -> list[Chart]:
    """Return the available charts of the primary metric and of the loss.

    Args:
        baseline: epochs of the FP32 training.
        qat: epochs of the fine-tuning.
        metric: primary metric of the task.
    """
    charts = []
    for title, name in ((metric.heading, metric.name), ("Loss", "loss")):
        found = []
        for phase, epochs, offset in (("baseline", baseline, 0), ("qat", qat, len(baseline))):
            found += _series(phase, "training", [each.training(name) for each in epochs], offset)
            validation = [each.validation(name) for each in epochs]
            found += _series(phase, "validation", validation, offset)
        if found:
            picture = _draw(title, found, len(baseline))
            charts.append(Chart(title=title, picture=picture, series=tuple(found)))
    return charts


def kept_epoch(qat: Sequence[Epoch]) -> str:
    """Return a sentence on the fine-tuning epoch of the QAT model's weights; empty if unknown."""
    kept = next((epoch for epoch in qat if epoch.kept), None)
    if kept is None:
        return ""
    if kept is qat[0]:
        tried = [epoch for epoch in qat if epoch.gain is not None]
        best = max(tried, key=lambda epoch: epoch.gain or 0.0, default=None)
        return (
            "No epoch of the fine-tuning was better on the validation part by more than noise: "
            f"the QAT model is the calibrated one.{_test_of(best)}"
        )
    return (
        f"The QAT model has the weights of epoch {qat.index(kept)} of the fine-tuning, the best on "
        f"the validation part.{_test_of(kept)}"
    )


def _test_of(epoch: Epoch | None) -> str:
    """Return a sentence on the significance test of an epoch."""
    if epoch is None or epoch.gain is None or epoch.gain_bound is None:
        return ""
    change = "fell" if epoch.gain >= 0 else "rose"
    return (
        f" In epoch {epoch.epoch:.0f} the mean loss {change} by "
        f"{significant(abs(epoch.gain))}; noise explains a fall of up to "
        f"{significant(epoch.gain_bound)} (one-sided paired test at 5 %)."
    )


def _series(phase: str, part: str, values: Sequence[float | None], offset: int) -> list[Series]:
    """Return the line of the measured values, or none."""
    numbered = enumerate(values, start=offset + 1)
    points = tuple((float(epoch), value) for epoch, value in numbered if value is not None)
    return [Series(phase=phase, part=part, points=points)] if points else []


def _draw(title: str, series: Sequence[Series], boundary: int) -> Markup:
    xs = [x for line in series for x, _ in line.points]
    ys = [y for line in series for _, y in line.points]
    x_axis = nice_axis(xs, start=_LEFT, end=_WIDTH - _RIGHT, ticks=8, whole=True)
    wide = min(ys) > 0 and max(ys) / min(ys) > _LOG_RATIO
    y_axis = (log_axis if wide else nice_axis)(ys, start=_HEIGHT - _BOTTOM, end=_TOP)
    parts = [_grid(x_axis, y_axis, title)]
    if any(line.phase == "qat" for line in series) and boundary > 0:
        parts.append(_boundary(x_axis.at(boundary + 0.5)))
    parts += [_line(line, x_axis, y_axis) for line in series]
    return svg.picture(_WIDTH, _HEIGHT, *parts, label=_describe(title, series), class_="chart")


def _grid(x_axis: Axis, y_axis: Axis, title: str) -> Markup:
    lines = []
    for tick in y_axis.ticks:
        y = y_axis.at(tick)
        lines.append(svg.element("line", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=y, y2=y, class_="grid"))
        lines.append(
            svg.text(_LEFT - 8, y + 4, y_axis.label(tick), text_anchor="end", class_="tick")
        )
    for tick in x_axis.ticks:
        lines.append(
            svg.text(
                x_axis.at(tick),
                _HEIGHT - _BOTTOM + 18,
                f"{tick:.0f}",
                text_anchor="middle",
                class_="tick",
            )
        )
    base = _HEIGHT - _BOTTOM
    lines.append(svg.element("line", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=base, y2=base, class_="axis"))
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    lines.append(svg.text(middle, _HEIGHT - 6, "epoch", text_anchor="middle", class_="axis-title"))
    height = (_TOP + base) / 2
    turned = f"rotate(-90 12 {height})"
    lines.append(
        svg.text(
            12,
            height,
            f"{title.lower()}, logarithmic" if y_axis.log else title.lower(),
            text_anchor="middle",
            class_="axis-title",
            transform=turned,
        )
    )
    return svg.element("g", *lines)


def _boundary(x: float) -> Markup:
    return svg.element(
        "g",
        svg.element("line", x1=x, x2=x, y1=_TOP, y2=_HEIGHT - _BOTTOM, class_="boundary"),
        svg.text(x - 5, _TOP - 5, "FP32", text_anchor="end", class_="tick"),
        svg.text(x + 5, _TOP - 5, "QAT", class_="tick"),
    )


def _line(line: Series, x_axis: Axis, y_axis: Axis) -> Markup:
    places = [(x_axis.at(x), y_axis.at(y), x, y) for x, y in line.points]
    path = " ".join(
        f"{'L' if index else 'M'}{x:.1f},{y:.1f}" for index, (x, y, _, _) in enumerate(places)
    )
    dots = [
        svg.element(
            "circle",
            svg.element("title", f"{line.label}, epoch {epoch:.0f}: {significant(value, 4)}"),
            cx=x,
            cy=y,
            r=2.6 if len(places) <= _MOST_DOTS else 1.4,
        )
        for x, y, epoch, value in places
    ]
    return svg.element(
        "g", svg.element("path", d=path), *dots, class_=f"series {line.phase} {line.part}"
    )


def _describe(title: str, series: Sequence[Series]) -> str:
    ends = "; ".join(
        f"{line.label} from {significant(line.points[0][1])} to {significant(line.points[-1][1])}"
        for line in series
    )
    return f"{title} by epoch. {ends}."
