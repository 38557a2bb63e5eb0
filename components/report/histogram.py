"""Small pictures of a quantizer's range and values."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from qat_lib.pages import html
from qat_lib.pages.numbers import significant
from qatline.components.artifacts.models import RangeHistogram

WIDTH, HEIGHT = 220.0, 46.0
_BASE, _BARS, _PAD = 36.0, 44, 4.0


def rebin(histogram: RangeHistogram, high: float, bins: int = _BARS) -> list[float]:
    """Return the counts of magnitudes in ``bins`` equal bars over [0, high].

    Args:
        histogram: counts with ascending edges; negative edges count by their magnitude.
        high: right end of the last bar; larger magnitudes are ignored.
    """
    counts, edges = histogram.counts, histogram.edges
    bars = [0.0] * bins
    if high <= 0 or len(edges) != len(counts) + 1:
        return bars
    width = high / bins
    for count, left, right in zip(counts, edges, edges[1:], strict=False):
        low, top = sorted((abs(left), abs(right)))
        if left < 0 < right:
            low = 0.0
        _spread(bars, float(count), low, top, width)
    return bars


def _spread(bars: list[float], count: float, low: float, high: float, width: float) -> None:
    first, last = int(low / width), min(int(high / width), len(bars) - 1)
    for index in range(first, last + 1):
        overlap = min(high, (index + 1) * width) - max(low, index * width)
        bars[index] += count * (overlap / (high - low) if high > low else 1.0)


def clipped_share(histogram: RangeHistogram, amax: float) -> float | None:
    """Return the share of values beyond ``amax``; None without a histogram."""
    counts, edges = histogram.counts, histogram.edges
    total = float(sum(counts))
    if total <= 0 or len(edges) != len(counts) + 1:
        return None
    beyond = 0.0
    for count, left, right in zip(counts, edges, edges[1:], strict=False):
        low, top = sorted((abs(left), abs(right)))
        if top > amax:
            beyond += count * ((top - max(low, amax)) / (top - low) if top > low else 1.0)
    return beyond / total


def activation_picture(
    histogram: RangeHistogram,
    *,
    calibrated: float | None,
    trained: float | None,
    observed: float | None,
) -> Markup:
    """Return the histogram with marks at the calibrated, trained and observed maximum."""
    marks = {"calibrated": calibrated, "trained": trained, "observed": observed}
    known = [value for value in marks.values() if value is not None]
    high = max(known, default=0.0) * 1.04
    if high <= 0:
        return Markup("")
    bars = rebin(histogram, high)
    peak = max(bars) or 1.0
    step = (WIDTH - 2 * _PAD) / len(bars)
    inside = (trained if trained is not None else calibrated) or high
    drawn = []
    for index, count in enumerate(bars):
        if count <= 0:
            continue
        # A square root keeps the flat tail visible beside the mass near zero.
        height = max((count / peak) ** 0.5 * (_BASE - 4), 0.8)
        tone = "bar" if index * high / len(bars) < inside else "bar clipped"
        x, y = _PAD + index * step, _BASE - height
        drawn.append(html.element("rect", x=x, y=y, width=step * 0.82, height=height, class_=tone))
    lines = [_mark(name, value, high) for name, value in marks.items() if value is not None]
    axis = html.element("line", x1=_PAD, x2=WIDTH - _PAD, y1=_BASE, y2=_BASE, class_="axis")
    ends = [
        html.text(_PAD, HEIGHT - 1, "0", class_="tick"),
        html.text(WIDTH - _PAD, HEIGHT - 1, significant(high), text_anchor="end", class_="tick"),
    ]
    said = ", ".join(f"{name} {significant(value)}" for name, value in marks.items())
    return html.picture(
        WIDTH,
        HEIGHT,
        *drawn,
        axis,
        *lines,
        *ends,
        label=f"Histogram of magnitudes; {said}",
        class_="spark",
    )


def weight_picture(calibrated: Sequence[float], trained: Sequence[float]) -> Markup:
    """Return one bar per channel: trained range, tick at the calibrated one."""
    final = list(trained or calibrated)
    high = max([*final, *calibrated], default=0.0)
    if high <= 0:
        return Markup("")
    before, final = _fewer(list(calibrated)), _fewer(final)
    step = (WIDTH - 2 * _PAD) / len(final)
    parts = []
    for index, value in enumerate(final):
        height = value / high * (HEIGHT - 6)
        parts.append(
            html.element(
                "rect",
                x=_PAD + index * step,
                y=HEIGHT - 2 - height,
                width=max(step * 0.82, 0.5),
                height=height,
                class_="bar",
            )
        )
        if len(before) == len(final):
            y = HEIGHT - 2 - before[index] / high * (HEIGHT - 6)
            x = _PAD + index * step
            parts.append(
                html.element("line", x1=x, x2=x + step * 0.82, y1=y, y2=y, class_="mark calibrated")
            )
    span = f"from {significant(min(final))} to {significant(max(final))}"
    label = f"Range of each of {len(trained or calibrated)} channels, {span}"
    return html.picture(WIDTH, HEIGHT, *parts, label=label, class_="spark")


def _fewer(values: list[float], most: int = 110) -> list[float]:
    """Return at most ``most`` values: the largest of each group of neighbours."""
    group = -(-len(values) // most)
    if group <= 1:
        return values
    return [max(values[index : index + group]) for index in range(0, len(values), group)]


def _mark(name: str, value: float, high: float) -> Markup:
    x = _PAD + value / high * (WIDTH - 2 * _PAD)
    top = 0.0 if name != "observed" else _BASE - 8
    return html.element(
        "line",
        html.element("title", f"{name}: {significant(value, 4)}"),
        x1=x,
        x2=x,
        y1=top,
        y2=_BASE + 3,
        class_=f"mark {name}",
    )
