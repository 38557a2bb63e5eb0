"""Checks of the gate against the champion."""

from __future__ import annotations

from collections.abc import Sequence

from qatline.components.artifacts.comparison import ChampionComparison, GroupTest
from qatline.components.artifacts.metric import Metric
from qatline.components.artifacts.promotion import Reason
from qatline.components.settings.gate_settings import ChampionSettings

_ROUNDING = 1e-9
_MIB = 2**20


def judge_against_champion(
    comparison: ChampionComparison | None, settings: ChampionSettings
) -> list[Reason]:
    """Judge a candidate against the champion of its registered model.

    Args:
        comparison: both on the same test part; None without a registry.
        settings: the margins.

    Returns:
        The checks; empty without a registry. Missing measurements fail.
    """
    if comparison is None:
        return []
    if comparison.version is None:
        message = "There is no champion yet."
        return [Reason(check="champion", passed=True, received="none", message=message)]
    if comparison.same:
        message = f"The candidate is the champion, version {comparison.version}."
        return [Reason(check="champion", passed=True, received="the same", message=message)]
    if comparison.problem:
        return [_unmeasured(comparison)]
    reasons = [_quality(comparison, settings)]
    groups = _groups(comparison.groups, settings, comparison.candidate.metric)
    if groups is not None:
        reasons.append(groups)
    reasons.append(_latency(comparison, settings))
    reasons.append(_size(comparison, settings))
    if settings.require == "better":
        reasons.append(_gain(comparison, settings))
    return reasons


def _unmeasured(comparison: ChampionComparison) -> Reason:
    return Reason(
        check="champion",
        passed=False,
        expected="a champion that can be measured on the same data",
        received=comparison.problem,
        message=(
            f"The champion, {comparison.problem.rstrip('.')}. To replace it all the same: qatline "
            "promote RUN --accept-rejected."
        ),
    )


def _quality(comparison: ChampionComparison, settings: ChampionSettings) -> Reason:
    ours, theirs = comparison.candidate.value, comparison.champion.value
    metric, test = comparison.candidate.metric, comparison.test
    absolute, relative = settings.max_drop, settings.max_relative_drop
    # A share, such as accuracy, has a bound of 0 by default. Other metrics have no natural unit, so a
    # significance test decides.
    by_test = absolute is None and relative is None and not metric.share
    if absolute is None and relative is None and metric.share:
        absolute = 0.0
    bounds = [] if absolute is None else [f"at most {metric.amount(absolute)} worse"]
    if relative is not None:
        bounds.append(f"at most {relative:.2%} of its value worse")
    expected = f"{' and '.join(bounds)} than the champion"
    if by_test:
        expected = f"not significantly worse than the champion (level {settings.level:g})"
    if ours is None or theirs is None:
        return _not_measured("champion_quality", expected, metric.label)
    loss = metric.loss(ours, theirs)
    passed = absolute is None or loss <= absolute + _ROUNDING
    if relative is not None:
        passed = passed and loss <= relative * abs(theirs) + _ROUNDING
    if by_test:
        passed = test.p_worse is not None and test.p_worse > settings.level
    interval = ""
    if test.low is not None and test.high is not None:
        low, high = metric.change(test.low, 0.0), metric.change(test.high, 0.0)
        interval = f", 95% interval {low} to {high}"
    points = " percentage points" if metric.share else ""
    received = f"{metric.text(ours)} against {metric.text(theirs)}"
    return Reason(
        check="champion_quality",
        passed=passed,
        expected=expected,
        received=received,
        message=(
            f"{metric.heading} {metric.change(ours, theirs)}{points} against champion version "
            f"{comparison.version} ({received}{interval}; {_test(comparison)})."
        ),
    )


def _test(comparison: ChampionComparison) -> str:
    test = comparison.test
    alone = ""
    if test.only_candidate is not None:
        alone = (
            f"{test.only_candidate} right in the candidate alone, "
            f"{test.only_champion} in the champion alone, "
        )
    return (
        f"{test.samples} samples, {alone}{test.name}: p={_p(test.p_better)} of better, "
        f"p={_p(test.p_worse)} of worse"
    )


def _p(value: float | None) -> str:
    return "?" if value is None else f"{value:.2g}"


def _groups(
    tests: Sequence[GroupTest] | None, settings: ChampionSettings, metric: Metric
) -> Reason | None:
    """Check each class or other group of the task; None for a task without groups.

    Groups without test samples fail a fixed bound, but not a significance test, which has no
    evidence of a loss.
    """
    if tests is not None and not tests:
        return None
    expected = f"no class significantly worse (level {settings.level:g})"
    if settings.max_class_drop is not None:
        bound = metric.amount(settings.max_class_drop)
        expected = f"at most {bound} below the champion on each class"
    if tests is None:
        return _not_measured("champion_groups", expected, f"{metric.label} by class")
    # Lost classes are reported, but fail only by their bound or test.
    failed, lost, empty = [], [], []
    for test in tests:
        shares = f"{test.name}: {metric.text(test.candidate)} against {metric.text(test.champion)}"
        if not test.samples:
            empty.append(str(test.name))
        elif _group_fails(test, settings, metric):
            failed.append(shares)
        elif metric.higher_is_better and test.champion and not test.candidate:
            lost.append(f"{shares} ({test.samples} samples)")
    messages = []
    if failed:
        messages.append(f"Classes worse than the champion's: {_listed(failed)}.")
    else:
        messages.append("No class is worse than the champion's by more than is allowed.")
    if lost:
        messages.append(f"Lost classes: {_listed(lost)}.")
    if empty:
        messages.append(f"Classes without test samples: {_listed(empty)}.")
    received = "; ".join(failed[:3]) or "none"
    if empty:
        received += f"; {len(empty)} not measured"
    return Reason(
        check="champion_groups",
        passed=not failed and (not empty or settings.max_class_drop is None),
        expected=expected,
        received=received,
        message=" ".join(messages),
    )


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return "; ".join(names[:3]) + more


def _group_fails(test: GroupTest, settings: ChampionSettings, metric: Metric) -> bool:
    if test.candidate is None or test.champion is None:
        return True
    if settings.max_class_drop is not None:
        return metric.loss(test.candidate, test.champion) > settings.max_class_drop + _ROUNDING
    # A task without a test for groups has no evidence of a loss.
    return test.p_worse is not None and test.p_worse <= settings.level


def _latency(comparison: ChampionComparison, settings: ChampionSettings) -> Reason:
    """Compare the latencies at batch 1, or the times in batches if an engine has no latency."""
    ours, theirs = comparison.candidate.latency_ms_p50, comparison.champion.latency_ms_p50
    where = "at batch 1"
    ours_rate, theirs_rate = comparison.candidate.throughput, comparison.champion.throughput
    if (ours is None or theirs is None) and ours_rate and theirs_rate:
        ours, theirs, where = 1000 / ours_rate, 1000 / theirs_rate, "per sample in batches"
    return _margin(
        "champion_latency",
        "Latency",
        (ours, theirs),
        settings.max_latency_increase,
        settings.max_latency_increase_ms,
        unit="ms",
        where=f" {where}",
    )


def _size(comparison: ChampionComparison, settings: ChampionSettings) -> Reason:
    ours, theirs = comparison.candidate.bytes, comparison.champion.bytes
    return _margin(
        "champion_size",
        "Engine size",
        (None if ours is None else ours / _MIB, None if theirs is None else theirs / _MIB),
        settings.max_size_increase,
        settings.max_size_increase_mib,
        unit="MiB",
        where="",
    )


def _margin(
    check: str,
    what: str,
    values: tuple[float | None, float | None],
    relative: float,
    absolute: float | None,
    *,
    unit: str,
    where: str,
) -> Reason:
    """Check that a value increased at most by a share and by an amount."""
    ours, theirs = values
    expected = f"at most {relative:.0%} above the champion's"
    if absolute is not None:
        expected += f" and at most {absolute:g} {unit}"
    # A champion of 0 was not measured either.
    if ours is None or not theirs:
        return _not_measured(check, expected, what.lower())
    passed = ours <= theirs * (1 + relative) + _ROUNDING
    passed = passed and (absolute is None or ours - theirs <= absolute + _ROUNDING)
    received = f"{ours:.3g} against {theirs:.3g} {unit}"
    change = f"{(ours / theirs - 1) * 100:+.0f} %"
    return Reason(
        check=check,
        passed=passed,
        expected=expected,
        received=received,
        message=f"{what}{where} {change} against the champion ({received}).",
    )


def _gain(comparison: ChampionComparison, settings: ChampionSettings) -> Reason:
    """Check for an improvement: noise alone does not replace a champion."""
    gains = []
    p_better = comparison.test.p_better
    if p_better is not None and p_better <= settings.level:
        gains.append(f"significantly better (p={_p(p_better)})")
    ours, theirs = comparison.candidate, comparison.champion
    # If both latency and throughput were measured, the smaller gain counts.
    speeds = []
    if ours.latency_ms_p50 and theirs.latency_ms_p50:
        speeds.append(ours.latency_ms_p50 / theirs.latency_ms_p50)
    if ours.throughput and theirs.throughput:
        speeds.append(theirs.throughput / ours.throughput)
    if speeds and max(speeds) <= 1 - settings.min_gain:
        gains.append(f"{1 - max(speeds):.0%} faster")
    if ours.bytes and theirs.bytes and ours.bytes / theirs.bytes <= 1 - settings.min_gain:
        gains.append(f"{1 - ours.bytes / theirs.bytes:.0%} smaller")
    received = ", ".join(gains) or "no gain"
    return Reason(
        check="champion_gain",
        passed=bool(gains),
        expected=(
            f"significantly better (level {settings.level:g}), or "
            f"{settings.min_gain:.0%} faster or smaller"
        ),
        received=received,
        message=f"Against the champion: {received}.",
    )


def _not_measured(check: str, expected: str, what: str) -> Reason:
    return Reason(
        check=check,
        passed=False,
        expected=expected,
        received="not measured",
        message=f"The {what} of candidate and champion was not compared.",
    )
