"""Training curves: baseline epochs, then fine-tuning epochs on one axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from qat_lib.pages.numbers import significant
from qatline.components.artifacts.metric import ACCURACY, Metric
from qatline.components.artifacts.models import Epoch
from qatline.components.report.plot import Plot


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
    points = [point for line in series for point in line.points]
    xs, ys = zip(*points, strict=True)
    plot = Plot(xs, ys, across="epoch", up=title.lower(), epochs=True)
    parts = []
    if any(line.phase == "qat" for line in series) and boundary > 0:
        parts.append(plot.boundary(boundary + 0.5, "FP32", "QAT"))
    for line in series:
        dots = [(x, y, f"{line.label}, epoch {x:.0f}: {significant(y, 4)}") for x, y in line.points]
        parts.append(plot.line(dots, class_=f"series {line.phase} {line.part}"))
    return plot.picture(*parts, label=_describe(title, series))


def _describe(title: str, series: Sequence[Series]) -> str:
    ends = "; ".join(
        f"{line.label} from {significant(line.points[0][1])} to {significant(line.points[-1][1])}"
        for line in series
    )
    return f"{title} by epoch. {ends}."
