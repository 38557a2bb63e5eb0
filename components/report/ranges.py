"""The range of each quantizer: what calibration saw and set, and what fine-tuning made of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from components.report.histogram import (
    activation_picture,
    clipped_share,
    flat_numbers,
    weight_picture,
)
from components.report.numbers import DASH, finite, percent, significant
from components.report.sources import RunData, as_mapping


@dataclass(frozen=True, kw_only=True)
class RangeRow:
    """One quantizer, ready to be shown; the texts are formatted, the picture may be empty."""

    name: str
    tensor: str
    kind: str
    picture: Markup
    calibrated: str
    observed: str
    trained: str
    change: str
    clipped: str


def range_rows(run: RunData) -> tuple[list[RangeRow], list[RangeRow]]:
    """Return the rows of activations and those of weights, in the plan's order."""
    planned = [
        str(item.get("name"))
        for item in run.plan.get("quantizers", [])
        if isinstance(item, Mapping)
    ]
    known = dict.fromkeys([*planned, *run.ptq_ranges, *run.qat_ranges])
    rows = [
        _row(name, as_mapping(run.ptq_ranges.get(name)), as_mapping(run.qat_ranges.get(name)))
        for name in known
    ]
    shown = [row for row in rows if row is not None]
    return [row for row in shown if row.kind != "weight"], [
        row for row in shown if row.kind == "weight"
    ]


def _row(name: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> RangeRow | None:
    facts = before or after
    if not facts:
        return None
    make = _weight if facts.get("kind") == "weight" else _activation
    return make(name, str(facts.get("tensor", "")), before, after)


def _activation(
    name: str, tensor: str, before: Mapping[str, Any], after: Mapping[str, Any]
) -> RangeRow:
    calibrated, trained = _first(before.get("amax")), _first(after.get("amax"))
    observed = finite(before.get("observed_max"))
    histogram = as_mapping(before.get("histogram") or after.get("histogram"))
    facts = after or before
    final = trained if trained is not None else calibrated
    return RangeRow(
        name=name,
        tensor=f"{tensor}, unsigned" if facts.get("unsigned") else tensor,
        kind="activation",
        picture=activation_picture(
            histogram, calibrated=calibrated, trained=trained, observed=observed
        ),
        calibrated=significant(calibrated),
        observed=significant(observed),
        trained=significant(trained),
        change=_change(calibrated, trained),
        clipped=DASH if final is None or not histogram else _share(clipped_share(histogram, final)),
    )


def _weight(
    name: str, tensor: str, before: Mapping[str, Any], after: Mapping[str, Any]
) -> RangeRow:
    calibrated, trained = flat_numbers(before.get("amax")), flat_numbers(after.get("amax"))
    return RangeRow(
        name=name,
        tensor=tensor,
        kind="weight",
        picture=weight_picture(calibrated, trained),
        calibrated=_spread(calibrated),
        observed=significant(finite(before.get("observed_max"))),
        trained=_spread(trained),
        change=_change(_mean(calibrated), _mean(trained)),
        clipped=DASH,
    )


def _first(value: Any) -> float | None:
    numbers = flat_numbers(value)
    return max(numbers) if numbers else None


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
