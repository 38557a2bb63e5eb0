"""The checks against the champion: at each margin and past it."""

from __future__ import annotations

from typing import Any

import pytest

from qatline.components.artifacts.comparison import ChampionComparison, GroupTest, PairedTest
from qatline.components.artifacts.metric import Metric
from qatline.components.artifacts.result_row import ResultRow
from qatline.components.evaluation.champion_gate import judge_against_champion
from qatline.components.settings.gate_settings import ChampionSettings

CHAMPION = {"accuracy": 0.9, "latency_ms_p50": 1.0, "throughput": 1000.0, "bytes": 1_000_000}
ALL = [
    "champion_quality",
    "champion_groups",
    "champion_latency",
    "champion_size",
    "champion_gain",
]


def comparison(p_better: float = 0.01, classes: Any = None, **candidate: Any) -> ChampionComparison:
    ours = {**CHAMPION, "accuracy": 0.92, **candidate}
    return ChampionComparison(
        version=3,
        digest="d",
        candidate=ResultRow.model_validate(ours),
        champion=ResultRow.model_validate(CHAMPION),
        test=PairedTest(
            samples=500,
            only_candidate=14,
            only_champion=4,
            low=0.0,
            high=0.04,
            p_better=p_better,
            p_worse=0.99,
        ),
        groups=classes
        or [GroupTest(name="cat", samples=50, candidate=0.9, champion=0.9, p_worse=1.0)],
    )


def failed(found: ChampionComparison | None, **margins: Any) -> list[str]:
    reasons = judge_against_champion(found, ChampionSettings.model_validate(margins))
    return [reason.check for reason in reasons if not reason.passed]


def test_better_candidate_passes_all_checks() -> None:
    reasons = judge_against_champion(comparison(), ChampionSettings())
    assert [reason.check for reason in reasons] == ALL
    assert all(reason.passed for reason in reasons)
    assert "McNemar's test: p=0.01 of better" in reasons[0].message
    assert "14 right in the candidate alone, 4 in the champion alone" in reasons[0].message
    assert "interval +0.00 to +4.00" in reasons[0].message


def test_unnamed_registry_adds_no_check() -> None:
    assert judge_against_champion(None, ChampionSettings()) == []


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (ChampionComparison(), "no champion yet"),
        (ChampionComparison(version=3, same=True), "is the champion, version 3"),
    ],
)
def test_first_and_same_candidate_pass(state: ChampionComparison, text: str) -> None:
    (reason,) = judge_against_champion(state, ChampionSettings())
    assert reason.passed
    assert text in reason.message


def test_champion_that_cannot_be_measured_stays() -> None:
    found = ChampionComparison(version=3, problem="version 3 can't be measured here: no VNNI.")
    (reason,) = judge_against_champion(found, ChampionSettings())
    assert not reason.passed
    assert "can't be measured here: no VNNI. To replace it" in reason.message


@pytest.mark.parametrize(
    ("margins", "candidate", "check"),
    [
        ({}, {"accuracy": 0.9}, None),
        ({}, {"accuracy": 0.898}, "champion_quality"),
        ({"max_drop": 0.01}, {"accuracy": 0.89}, None),
        ({"max_drop": 0.01}, {"accuracy": 0.889}, "champion_quality"),
        ({"max_drop": 0.1, "max_relative_drop": 0.1}, {"accuracy": 0.81}, None),
        ({"max_drop": 0.1, "max_relative_drop": 0.1}, {"accuracy": 0.809}, "champion_quality"),
        ({}, {"latency_ms_p50": 1.25}, None),
        ({}, {"latency_ms_p50": 1.26}, "champion_latency"),
        ({"max_latency_increase_ms": 0.1}, {"latency_ms_p50": 1.1}, None),
        ({"max_latency_increase_ms": 0.1}, {"latency_ms_p50": 1.11}, "champion_latency"),
        ({}, {"latency_ms_p50": None, "throughput": 800.0}, None),
        ({}, {"latency_ms_p50": None, "throughput": 790.0}, "champion_latency"),
        ({}, {"latency_ms_p50": None, "throughput": None}, "champion_latency"),
        ({}, {"bytes": 1_250_000}, None),
        ({}, {"bytes": 1_250_001}, "champion_size"),
        ({"max_size_increase_mib": 0.1}, {"bytes": 1_110_000}, "champion_size"),
        ({}, {"bytes": None}, "champion_size"),
        ({}, {"accuracy": None}, "champion_quality"),
    ],
)  # fmt: skip
def test_margins_hold_exactly(
    margins: dict[str, Any], candidate: dict[str, Any], check: str | None
) -> None:
    assert failed(comparison(**candidate), **margins) == ([check] if check else [])


@pytest.mark.parametrize(
    ("p_better", "candidate", "gains"),
    [
        (0.05, {}, True),
        (0.051, {}, False),
        (0.5, {"latency_ms_p50": 0.9, "throughput": 1112.0}, True),
        (0.5, {"latency_ms_p50": 0.91, "throughput": 1112.0}, False),
        (0.5, {"latency_ms_p50": 0.5, "throughput": 1000.0}, False),  # faster at one size only
        (0.5, {"bytes": 900_000}, True),
        (0.5, {"bytes": 901_000}, False),
    ],
)
def test_gain_must_be_more_than_noise(
    p_better: float, candidate: dict[str, Any], gains: bool
) -> None:
    found = comparison(p_better, **candidate)
    assert failed(found) == ([] if gains else ["champion_gain"])
    assert failed(found, require="not_worse") == []


@pytest.mark.parametrize(
    ("margins", "accuracy", "p_worse", "passed"),
    [
        ({}, 0.5, 0.051, True),
        ({}, 0.5, 0.05, False),
        ({"max_class_drop": 0.1}, 0.8, 0.01, True),
        ({"max_class_drop": 0.1}, 0.79, 1.0, False),
        ({}, None, 1.0, False),
    ],
)
def test_classes_have_a_floor(
    margins: dict[str, Any], accuracy: float | None, p_worse: float, passed: bool
) -> None:
    tests = [GroupTest(name="dog", samples=9, candidate=accuracy, champion=0.9, p_worse=p_worse)]
    found = comparison(classes=tests)
    assert failed(found, **margins) == ([] if passed else ["champion_groups"])


@pytest.mark.parametrize(("champion", "named"), [(1.0, True), (0.0, False)])
def test_lost_rare_class_is_named(champion: float, named: bool) -> None:
    rare = GroupTest(name="rare", samples=3, candidate=0.0, champion=champion, p_worse=0.125)
    reason = judge_against_champion(comparison(classes=[rare]), ChampionSettings())[1]
    assert reason.passed
    assert ("rare: 0.00% against 100.00% (3 samples)" in reason.message) == named


@pytest.mark.parametrize(("margins", "passed"), [({}, True), ({"max_class_drop": 0.5}, False)])
def test_class_without_samples_fails_a_bound(margins: dict[str, Any], passed: bool) -> None:
    tests = [
        GroupTest(name="dog", samples=9, candidate=0.9, champion=0.9, p_worse=1.0),
        GroupTest(name="rare", samples=0),
    ]
    reasons = judge_against_champion(
        comparison(classes=tests), ChampionSettings.model_validate(margins)
    )
    reason = next(each for each in reasons if each.check == "champion_groups")
    assert reason.passed == passed
    assert "Classes without test samples: rare." in reason.message


def test_champion_without_classes_rejects() -> None:
    found = comparison().model_copy(update={"groups": None})
    assert failed(found) == ["champion_groups"]
    assert failed(comparison().model_copy(update={"groups": ()})) == []  # a task without groups


def error(value: float) -> ResultRow:
    """Return a row of a regression."""
    metric = Metric(name="mae", title="mean absolute error", higher_is_better=False)
    return ResultRow(latency_ms_p50=1.0, bytes=10).with_quality({"mae": value}, metric)


@pytest.mark.parametrize(
    ("p_worse", "margins", "check"),
    [
        (0.2, {}, None),
        (0.04, {}, "champion_quality"),
        (0.04, {"max_drop": 0.2}, None),
        (0.9, {"max_drop": 0.05}, "champion_quality"),
        (0.9, {"max_relative_drop": 0.05}, None),
        (0.9, {"max_relative_drop": 0.04}, "champion_quality"),
    ],
)
def test_errors_are_better_if_they_are_lower(
    p_worse: float, margins: dict[str, Any], check: str | None
) -> None:
    found = ChampionComparison(
        version=1,
        candidate=error(2.1),
        champion=error(2.0),
        test=PairedTest(name="Wilcoxon", samples=90, p_better=1 - p_worse, p_worse=p_worse),
        groups=(),
    )
    assert failed(found, require="not_worse", **margins) == ([check] if check else [])
    message = judge_against_champion(found, ChampionSettings())[0].message
    assert "Mean absolute error +0.100 against champion version 1 (2.1 against 2;" in message


def test_worse_classes_are_named() -> None:
    tests = []
    for name in "abcde":
        tests.append(GroupTest(name=name, samples=9, candidate=0.1, champion=0.9, p_worse=0.0))
    reasons = judge_against_champion(comparison(classes=tests), ChampionSettings())
    message = next(each.message for each in reasons if each.check == "champion_groups")
    assert message == (
        "Classes worse than the champion's: a: 10.00% against 90.00%; b: 10.00% against 90.00%; "
        "c: 10.00% against 90.00% and 2 more."
    )
