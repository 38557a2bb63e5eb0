"""Measures, bounds and the order of trials."""

from __future__ import annotations

import pytest

from qat_lib.errors import ConfigError
from qatline.components.artifacts import ResultRow
from qatline.components.artifacts.metric import Metric
from qatline.pipelines.sweep.measures import Goal, TrialMeasures, parse_bound, rank_trials

ERROR = Metric(name="mae", higher_is_better=False)


def measured(
    quality: float, latency: float, size: float = 1.0, verdict: str = "promote"
) -> TrialMeasures:
    return TrialMeasures(quality=quality, latency_ms=latency, size=size, verdict=verdict)


def test_measured_reads_the_candidate() -> None:
    rows = {
        "fp32": ResultRow(quality={"mae": 2.0}, metric=ERROR),
        "qat_engine": ResultRow(quality={"mae": 2.5}, metric=ERROR, latency_ms_p50=1.5, bytes=10),
    }
    found = TrialMeasures.of(rows, "reject")
    assert (found.quality, found.drop, found.latency_ms, found.size) == (2.5, 0.5, 1.5, 10.0)
    assert (found.verdict, found.metric.name, found.cost("quality")) == ("reject", "mae", 2.5)
    assert TrialMeasures.model_validate_json(found.model_dump_json()) == found


def test_unmeasured_rows_are_none() -> None:
    found = TrialMeasures.of({}, None)
    assert (found.quality, found.drop, found.cost("quality"), found.cost("latency")) == (None,) * 4


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("latency_ms<2", TrialMeasures(latency_ms=1.9), TrialMeasures(latency_ms=2.0)),
        ("latency_ms <= 2", TrialMeasures(latency_ms=2.0), TrialMeasures(latency_ms=2.1)),
        ("size<300kB", TrialMeasures(size=299_999), TrialMeasures(size=300_000)),
        ("drop<=0.5%", TrialMeasures(drop=0.005), TrialMeasures(drop=0.0051)),
        ("drop<0.005", TrialMeasures(drop=-0.1), TrialMeasures()),
        ("quality>=97%", TrialMeasures(quality=0.97), TrialMeasures(quality=0.96)),
        ("quality>0.97", TrialMeasures(quality=0.98), TrialMeasures(quality=0.97)),
    ],
)
def test_bounds_separate_trials(text: str, inside: TrialMeasures, outside: TrialMeasures) -> None:
    bound = parse_bound(text)
    assert bound.allows(inside)
    assert bound.violation(inside) <= 0
    assert not bound.allows(outside)
    assert bound.violation(outside) > 0


@pytest.mark.parametrize(
    "text", ["latncy<2", "latency_ms=2", "latency_ms<fast", "size<big", "drop<x%"]
)
def test_parse_bound_rejects_other_texts(text: str) -> None:
    with pytest.raises(ConfigError, match="--under") as raised:
        parse_bound(text)
    assert "received" in str(raised.value)


@pytest.mark.parametrize(
    ("goal", "bounds", "order"),
    [
        ("quality", [], [2, 1, 0]),
        ("latency", [], [0, 1, 2]),
        ("size", [], [1, 2, 0]),
        ("quality", ["latency_ms<3"], [1, 0]),
        ("latency", ["quality>0.85"], [1, 2]),
        ("quality", ["latency_ms<1"], []),
    ],
)
def test_rank_orders_trials_within_bounds(goal: Goal, bounds: list[str], order: list[int]) -> None:
    trials = [measured(0.8, 1.0, 9.0), measured(0.9, 2.0, 1.0), measured(0.95, 3.0, 5.0)]
    assert rank_trials(trials, [parse_bound(text) for text in bounds], goal) == order


def test_rank_puts_rejected_and_slower_trials_last() -> None:
    trials = [measured(0.99, 1.0, verdict="reject"), measured(0.9, 2.0), measured(0.9, 1.0)]
    assert rank_trials([*trials, TrialMeasures()], [], "quality") == [2, 1, 0]


def test_rank_minimizes_errors() -> None:
    trials = [TrialMeasures(quality=value, metric=ERROR) for value in (3.0, 1.0, 2.0)]
    assert rank_trials(trials, [], "quality") == [1, 2, 0]
