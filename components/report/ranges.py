"""Each quantizer's range: observed, calibrated and fine-tuned."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup

from qat_lib.pages.numbers import DASH, percent, significant
from qatline.components.artifacts.models import QuantizerRange, RangeHistogram
from qatline.components.report.histogram import activation_picture, clipped_share, weight_picture
from qatline.components.report.sources import RunData


@dataclass(frozen=True, kw_only=True)
class RangeRow:
    """One quantizer's row: formatted texts and a picture, possibly empty."""

    name: str
    tensor: str
    kind: str
    picture: Markup
    calibrated: str
    observed: str
    trained: str
    change: str
    clipped: str
    oscillating: str = DASH


_NO_HISTOGRAM = RangeHistogram(counts=(), edges=())
_NO_RANGE = QuantizerRange()


def range_rows(run: RunData) -> tuple[list[RangeRow], list[RangeRow]]:
    """Return activation rows and weight rows in the plan's order."""
    planned = [entry.name for entry in run.plan.quantizers]
    measured = {**run.ptq_ranges, **run.qat_ranges}
    activations, weights = [], []
    for name in dict.fromkeys([*planned, *measured]):
        if name not in measured:
            continue
        before, after = run.ptq_ranges.get(name), run.qat_ranges.get(name)
        if measured[name].kind == "weight":
            weights.append(_weight(name, before, after))
        else:
            activations.append(_activation(name, before, after))
    return activations, weights


def _activation(name: str, before: QuantizerRange | None, after: QuantizerRange | None) -> RangeRow:
    calibrated, trained = _largest(before), _largest(after)
    observed = before.observed_max if before else None
    histogram = (before and before.histogram) or (after and after.histogram) or _NO_HISTOGRAM
    latest = after or before or _NO_RANGE
    final = trained if trained is not None else calibrated
    share = None if final is None else clipped_share(histogram, final)
    return RangeRow(
        name=name,
        tensor=f"{latest.tensor}, unsigned" if latest.unsigned else latest.tensor or "",
        kind="activation",
        picture=activation_picture(
            histogram, calibrated=calibrated, trained=trained, observed=observed
        ),
        calibrated=significant(calibrated),
        observed=significant(observed),
        trained=significant(trained),
        change=_change(calibrated, trained),
        clipped=_share(share),
    )


def _weight(name: str, before: QuantizerRange | None, after: QuantizerRange | None) -> RangeRow:
    calibrated, trained = _channels(before), _channels(after)
    return RangeRow(
        name=name,
        tensor=(before or after or _NO_RANGE).tensor or "",
        kind="weight",
        picture=weight_picture(calibrated, trained),
        calibrated=_spread(calibrated),
        observed=significant(before.observed_max if before else None),
        trained=_spread(trained),
        change=_change(_mean(calibrated), _mean(trained)),
        clipped=DASH,
        oscillating=_oscillation(after),
    )


def _oscillation(found: QuantizerRange | None) -> str:
    """Return the shares of oscillating and of frozen weights."""
    if found is None or found.oscillating is None:
        return DASH
    held = f", {_share(found.held)} frozen" if found.held else ""
    return f"{_share(found.oscillating)}{held}"


def _channels(found: QuantizerRange | None) -> list[float]:
    """Return each channel's range; one value if per-tensor."""
    if found is None or found.amax is None:
        return []
    return [found.amax] if isinstance(found.amax, float) else list(found.amax)


def _largest(found: QuantizerRange | None) -> float | None:
    return max(_channels(found), default=None)


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _spread(values: list[float]) -> str:
    if len(values) < 2:
        return significant(values[0]) if values else DASH
    return f"{significant(min(values))} … {significant(max(values))}"


def _change(before: float | None, after: float | None) -> str:
    if not before or after is None:
        return DASH
    share = after / before - 1
    return "=" if abs(share) < 0.0005 else f"{share * 100:+.1f}%".replace("-", "−")


def _share(value: float | None) -> str:
    if value is not None and 0 < value < 0.00005:
        return "< 0.01%"
    return percent(value)
