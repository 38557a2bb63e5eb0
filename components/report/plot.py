"""Plots with two axes: round ticks, a grid, and lines of points."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from qat_lib.pages import html

_WIDTH, _HEIGHT = 560.0, 296.0
# Room for the last tick and below the first ones, also in the larger font of narrow pages.
_LEFT, _RIGHT, _TOP, _BASE = 64.0, _WIDTH - 24.0, 20.0, _HEIGHT - 50.0
# Minimum ratio of the largest to the smallest value for a logarithmic axis.
_LOG_RATIO = 50.0
# Points of a line up to which its dots are large.
_MOST_DOTS = 30


@dataclass(frozen=True, kw_only=True)
class Axis:
    """Maps [low, high] to [start, end] in pixels, linearly or logarithmically."""

    low: float
    high: float
    start: float
    end: float
    ticks: tuple[float, ...]
    log: bool = False

    def at(self, value: float) -> float:
        """Return the coordinate of ``value``."""
        low, high = self.low, self.high
        if self.log:
            low, high, value = math.log(low), math.log(high), math.log(max(value, low))
        return self.start + (self.end - self.start) * (
            (value - low) / (high - low) if high > low else 0.5
        )

    def label(self, tick: float) -> str:
        """Return a tick's text with enough digits to be distinct."""
        if self.log:
            return f"{tick:g}"
        step = self.ticks[1] - self.ticks[0] if len(self.ticks) > 1 else 1.0
        digits = next((n for n in range(9) if abs(round(step, n) - step) < step * 1e-6), 9)
        return f"{tick:.{digits}f}".replace("-", "−")


def nice_axis(
    values: Iterable[float], *, start: float, end: float, ticks: int = 5, whole: bool = False
) -> Axis:
    """Return an axis with round ends that encloses ``values``.

    Args:
        values: values to enclose; an empty series gives [0, 1].
        start: coordinate of the low end.
        end: coordinate of the high end.
        ticks: approximate number of ticks.
        whole: whether ticks are whole numbers (epochs) and the ends are those of the data.
    """
    seen = list(values) or [0.0, 1.0]
    low, high = min(seen), max(seen)
    if high - low < 1e-12:
        pad = abs(high) * 0.1 or 0.5
        low, high = low - (0 if whole else pad), high + (1 if whole else pad)
    raw = (high - low) / max(ticks - 1, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    # The nearest round step above the raw one: 1, 2, 2.5 or 5 times a power of ten.
    step = next(
        power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= raw * (1 - 1e-9)
    )
    if whole:
        step = max(1.0, float(round(step)))
        first = math.ceil(low / step) * step
        marks = [low] if first - low >= step else []
    else:
        low, high = math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step
        first, marks = low, []
    while first <= high + step * 1e-6:
        marks.append(first)
        first += step
    return Axis(low=low, high=high, start=start, end=end, ticks=tuple(marks))


def log_axis(values: Iterable[float], *, start: float, end: float) -> Axis:
    """Return a logarithmic axis between powers of ten that encloses positive ``values``."""
    seen = list(values)
    low, high = math.floor(math.log10(min(seen)) + 1e-9), math.ceil(math.log10(max(seen)) - 1e-9)
    high = max(high, low + 1)
    step = -(-(high - low) // 6)
    marks = tuple(10.0**power for power in range(low, high + 1, step))
    return Axis(low=10.0**low, high=10.0**high, start=start, end=end, ticks=marks, log=True)


class Plot:
    """Axes around given points, and the pictures of lines and marks on them.

    Args:
        xs, ys: coordinates of all points.
        across, up: titles of the axes.
        epochs: whether ``xs`` are whole numbers.
    """

    def __init__(
        self,
        xs: Sequence[float],
        ys: Sequence[float],
        *,
        across: str,
        up: str,
        epochs: bool = False,
    ) -> None:
        self.x = (
            nice_axis(xs, start=_LEFT, end=_RIGHT, ticks=8, whole=True)
            if epochs
            else _axis(xs, _LEFT, _RIGHT)
        )
        self.y = _axis(ys, _BASE, _TOP)
        self._titles = _title(across, self.x), _title(up, self.y)

    def picture(self, *parts: Markup, label: str) -> Markup:
        """Return the plot with ``parts`` on its grid."""
        return html.picture(_WIDTH, _HEIGHT, self._grid(), *parts, label=label, class_="chart")

    def line(
        self, points: Iterable[tuple[float, float, str]], *, class_: str, width: float | None = None
    ) -> Markup:
        """Return a line through (x, y, tooltip), with a dot at each point."""
        places = [(self.x.at(x), self.y.at(y), tooltip) for x, y, tooltip in points]
        path = " ".join(
            f"{'L' if index else 'M'}{x:.1f},{y:.1f}" for index, (x, y, _) in enumerate(places)
        )
        radius = 2.6 if len(places) <= _MOST_DOTS else 1.4
        dots = [
            html.element("circle", html.element("title", tooltip), cx=x, cy=y, r=radius)
            for x, y, tooltip in places
        ]
        return html.element(
            "g", html.element("path", d=path, stroke_width=width), *dots, class_=class_
        )

    def boundary(self, x: float, before: str, after: str) -> Markup:
        """Return a vertical line at ``x`` between two named parts."""
        place = self.x.at(x)
        return html.element(
            "g",
            html.element("line", x1=place, x2=place, y1=_TOP, y2=_BASE, class_="boundary"),
            html.text(place - 5, _TOP - 5, before, text_anchor="end", class_="tick"),
            html.text(place + 5, _TOP - 5, after, class_="tick"),
        )

    def _grid(self) -> Markup:
        parts = []
        for tick in self.y.ticks:
            y, label = self.y.at(tick), self.y.label(tick)
            parts.append(html.element("line", x1=_LEFT, x2=_RIGHT, y1=y, y2=y, class_="grid"))
            parts.append(html.text(_LEFT - 8, y + 4, label, text_anchor="end", class_="tick"))
        for tick in self.x.ticks:
            x, label = self.x.at(tick), self.x.label(tick)
            parts.append(html.text(x, _BASE + 23, label, text_anchor="middle", class_="tick"))
        parts.append(html.element("line", x1=_LEFT, x2=_RIGHT, y1=_BASE, y2=_BASE, class_="axis"))
        across, up = self._titles
        height = (_TOP + _BASE) / 2
        for x, y, title, turn in (
            ((_LEFT + _RIGHT) / 2, _HEIGHT - 5, across, None),
            (12, height, up, f"rotate(-90 12 {height})"),
        ):
            parts.append(
                html.text(x, y, title, text_anchor="middle", class_="axis-title", transform=turn)
            )
        return html.element("g", *parts)


def _axis(values: Sequence[float], start: float, end: float) -> Axis:
    """Return a logarithmic axis for positive values far apart, else a linear one."""
    if min(values) > 0 and max(values) / min(values) > _LOG_RATIO:
        return log_axis(values, start=start, end=end)
    return nice_axis(values, start=start, end=end)


def _title(text: str, axis: Axis) -> str:
    return f"{text}, logarithmic" if axis.log else text
