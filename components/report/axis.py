"""A linear axis: round ticks and the value-to-coordinate mapping."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


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
    step = _nice_step((high - low) / max(ticks - 1, 1))
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


def _nice_step(raw: float) -> float:
    power = 10.0 ** math.floor(math.log10(raw))
    return next(
        power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= raw * (1 - 1e-9)
    )
