"""Scatter plot of predictions against targets."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from qatline.components.report import svg
from qatline.components.report.axis import nice_axis
from qatline.components.report.numbers import significant

_SIZE, _LEFT, _RIGHT, _TOP, _BOTTOM = 360.0, 60.0, 14.0, 14.0, 44.0


def draw_scatter(pairs: Sequence[Sequence[float]]) -> Markup:
    """Return a picture of (target, prediction) pairs with the line of right predictions.

    The result is empty without pairs.
    """
    if not pairs:
        return Markup("")
    values = [value for pair in pairs for value in pair]
    base, right = _SIZE - _BOTTOM, _SIZE - _RIGHT
    # Both axes have the same range, so that right predictions lie on the diagonal.
    across = nice_axis(values, start=_LEFT, end=right)
    up = nice_axis(values, start=base, end=_TOP)
    parts = []
    for tick in up.ticks:
        y = up.at(tick)
        parts.append(svg.element("line", x1=_LEFT, x2=right, y1=y, y2=y, class_="grid"))
        parts.append(svg.text(_LEFT - 8, y + 4, up.label(tick), text_anchor="end", class_="tick"))
    for tick in across.ticks:
        x = across.at(tick)
        label = across.label(tick)
        parts.append(svg.text(x, base + 18, label, text_anchor="middle", class_="tick"))
    ends = (across.low, across.high)
    parts.append(
        svg.element(
            "line",
            x1=across.at(ends[0]),
            x2=across.at(ends[1]),
            y1=up.at(ends[0]),
            y2=up.at(ends[1]),
            class_="axis",
        )
    )
    for target, prediction in pairs:
        told = svg.element(
            "title", f"target {significant(target)}, prediction {significant(prediction)}"
        )
        dot = {"cx": across.at(target), "cy": up.at(prediction)}
        parts.append(svg.element("circle", told, r=3.0, class_="scatter-dot", **dot))
    kind = {"text_anchor": "middle", "class_": "axis-title"}
    parts.append(svg.text((_LEFT + right) / 2, _SIZE - 6, "target", **kind))
    turned = f"rotate(-90 12 {base / 2})"
    parts.append(svg.text(12.0, base / 2, "prediction", transform=turned, **kind))
    label = f"Predictions of {len(pairs)} test samples against their targets"
    return svg.picture(_SIZE, _SIZE, *parts, label=label, class_="chart scatter")
