"""Measures of a trial, bounds on them, and the choice of the best trial."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from pydantic import ByteSize, TypeAdapter

from qat_lib.errors import ConfigError
from qatline.components.artifacts.evaluation import ResultRow
from qatline.components.artifacts.metric import ACCURACY, Metric
from qatline.components.artifacts.record import Record
from qatline.components.artifacts.variants import CANDIDATE, REFERENCE

Goal: TypeAlias = Literal["quality", "latency", "size"]

# Metrics are ratios of counts: equal ones can differ in the last bit.
_ROUNDING = 1e-9


class TrialMeasures(Record):
    """Measures of the QAT INT8 engine of a trial; None if not measured.

    Attributes:
        quality: primary metric on the test part.
        drop: loss of the primary metric against the FP32 model of the trial.
        latency_ms: median latency at batch 1, in milliseconds.
        size: size of the engine file in bytes.
        verdict: verdict of the gate.
        metric: the primary metric.
    """

    quality: float | None = None
    drop: float | None = None
    latency_ms: float | None = None
    size: float | None = None
    verdict: str | None = None
    metric: Metric = ACCURACY

    @classmethod
    def of(cls, rows: Mapping[str, ResultRow], verdict: str | None) -> TrialMeasures:
        """Return the measures of a finished run from the rows of its evaluation."""
        row = rows.get(CANDIDATE, ResultRow())
        before = rows.get(REFERENCE, ResultRow()).value
        drop = None
        if row.value is not None and before is not None:
            drop = row.metric.loss(row.value, before)
        return cls(
            quality=row.value,
            drop=drop,
            latency_ms=row.latency_ms_p50,
            size=row.bytes,
            verdict=verdict,
            metric=row.metric,
        )

    def cost(self, goal: Goal) -> float | None:
        """Return the value to minimize for a goal; None if not measured."""
        if goal == "quality":
            return None if self.quality is None else self.metric.loss(self.quality, 0.0)
        return self.latency_ms if goal == "latency" else self.size


_MEASURES = ("quality", "drop", "latency_ms", "size")
_BOUND = re.compile(r"\s*(\w+)\s*(<=?|>=?)\s*(.+?)\s*")
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    "<": lambda value, limit: value < limit - _ROUNDING,
    "<=": lambda value, limit: value <= limit + _ROUNDING,
    ">": lambda value, limit: value > limit + _ROUNDING,
    ">=": lambda value, limit: value >= limit - _ROUNDING,
}


@dataclass(frozen=True, kw_only=True)
class TrialBound:
    """A condition on a measure, such as ``latency_ms<2``."""

    text: str
    measure: str
    operator: str
    limit: float

    def allows(self, measured: TrialMeasures) -> bool:
        """Return whether the measure is known and within the bound."""
        value: float | None = getattr(measured, self.measure)
        return value is not None and _COMPARE[self.operator](value, self.limit)

    def violation(self, measured: TrialMeasures) -> float:
        """Return by how much the bound is missed, for Optuna: at most 0 within the bound."""
        value: float | None = getattr(measured, self.measure)
        if value is None:
            return 1.0
        excess = value - self.limit if self.operator.startswith("<") else self.limit - value
        return min(excess, 0.0) if self.allows(measured) else max(excess, _ROUNDING)


def parse_bound(text: str) -> TrialBound:
    """Return the bound of an ``--under`` text.

    Examples:
        >>> parse_bound("drop<0.5%").limit
        0.005
        >>> parse_bound("size<=300kB").limit
        300000.0

    Raises:
        ConfigError: the text has another form.
    """
    match = _BOUND.fullmatch(text)
    name = match[1] if match else ""
    if match is None or name not in _MEASURES:
        raise ConfigError(
            f"--under: expected a bound on {', '.join(_MEASURES)}, such as 'latency_ms<2', "
            f"'size<300kB' or 'drop<0.5%'; received {text!r}."
        )
    return TrialBound(
        text=text.strip(), measure=name, operator=match[2], limit=_limit(name, match[3])
    )


def _limit(name: str, text: str) -> float:
    try:
        if name == "size":
            return float(TypeAdapter(ByteSize).validate_python(text))
        if name in ("quality", "drop") and text.endswith("%"):
            return float(text.removesuffix("%")) / 100
        return float(text)
    except ValueError as error:
        expected = {"size": "a size such as 300kB", "latency_ms": "milliseconds"}
        raise ConfigError(
            f"--under {name}: expected {expected.get(name, 'a number such as 0.005 or 0.5%')}, "
            f"received {text!r}."
        ) from error


def rank_trials(
    trials: Sequence[TrialMeasures], bounds: Sequence[TrialBound], goal: Goal
) -> list[int]:
    """Return the positions of the trials within all bounds, best first.

    Trials that the gate rejected come last. Equal values of the goal are ordered by quality,
    latency and size.
    """

    def key(position: int) -> tuple[bool, list[float]]:
        measured = trials[position]
        goals: tuple[Goal, ...] = (goal, "quality", "latency", "size")
        costs = [measured.cost(each) for each in goals]
        missing = float("inf")
        return measured.verdict == "reject", [missing if cost is None else cost for cost in costs]

    within = []
    for position, measured in enumerate(trials):
        allowed = all(bound.allows(measured) for bound in bounds)
        if allowed and measured.cost(goal) is not None:
            within.append(position)
    return sorted(within, key=key)
