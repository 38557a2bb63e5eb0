"""Scatter plot of predictions against targets."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from qat_lib.pages import html
from qat_lib.pages.numbers import significant
from qatline.components.report.plot import Plot


def draw_scatter(pairs: Sequence[Sequence[float]]) -> Markup:
    """Return a picture of (target, prediction) pairs with the line of right predictions.

    The result is empty without pairs.
    """
    if not pairs:
        return Markup("")
    values = [value for pair in pairs for value in pair]
    # Both axes have the same range, so that right predictions lie on the diagonal.
    plot = Plot(values, values, across="target", up="prediction")
    ends = [(value, value, significant(value)) for value in (min(values), max(values))]
    dots = []
    for target, prediction in pairs:
        told = f"target {significant(target)}, prediction {significant(prediction)}"
        place = {"cx": plot.x.at(target), "cy": plot.y.at(prediction)}
        dots.append(
            html.element("circle", html.element("title", told), r=3.0, class_="scatter", **place)
        )
    label = f"Predictions of {len(pairs)} test samples against their targets"
    return plot.picture(plot.line(ends, class_="diagonal"), *dots, label=label)
