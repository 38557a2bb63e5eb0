"""Checks of the gate against the champion."""

from __future__ import annotations

from collections.abc import Sequence

from qatline.components.artifacts.comparison import ChampionComparison, ClassTest
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
    reasons = [_accuracy(comparison, settings), _classes(comparison.classes, settings)]
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


def _accuracy(comparison: ChampionComparison, settings: ChampionSettings) -> Reason:
    ours, theirs = comparison.candidate.accuracy, comparison.champion.accuracy
    test = comparison.test
    expected = f"at most {settings.max_accuracy_drop:.2%} below the champion"
    if settings.max_relative_accuracy_drop is not None:
        expected += f" and at most {settings.max_relative_accuracy_drop:.2%} of its accuracy"
    if ours is None or theirs is None:
        return _not_measured("champion_accuracy", expected, "accuracy")
    drop = theirs - ours
    passed = drop <= settings.max_accuracy_drop + _ROUNDING
    if settings.max_relative_accuracy_drop is not None:
        passed = passed and drop <= settings.max_relative_accuracy_drop * theirs + _ROUNDING
    interval = ""
    if test.low is not None and test.high is not None:
        interval = f", 95% interval {test.low * 100:+.2f} to {test.high * 100:+.2f}"
    return Reason(
        check="champion_accuracy",
        passed=passed,
        expected=expected,
        received=f"{ours:.2%} against {theirs:.2%}",
        message=(
            f"Accuracy {-drop * 100:+.2f} percentage points against champion version "
            f"{comparison.version} ({ours:.2%} against {theirs:.2%}{interval}; {_test(comparison)})"
            "."
        ),
    )


def _test(comparison: ChampionComparison) -> str:
    test = comparison.test
    return (
        f"{test.samples} samples, {test.only_candidate} right in the candidate alone, "
        f"{test.only_champion} in the champion alone, McNemar p={_p(test.p_better)} of better, "
        f"p={_p(test.p_worse)} of worse"
    )


def _p(value: float | None) -> str:
    return "?" if value is None else f"{value:.2g}"


def _classes(tests: Sequence[ClassTest], settings: ChampionSettings) -> Reason:
    """Check the accuracy of each class.

    Classes without test samples fail a fixed bound, but not a significance test, which has no
    evidence of a loss.
    """
    expected = f"no class significantly worse (McNemar, level {settings.level:g})"
    if settings.max_class_drop is not None:
        expected = f"at most {settings.max_class_drop:.2%} below the champion on each class"
    if not tests:
        return _not_measured("champion_classes", expected, "accuracy by class")
    failed, lost, empty = [], [], []
    for test in tests:
        shares = f"{test.name}: {_share(test.candidate)} against {_share(test.champion)}"
        if not test.samples:
            empty.append(str(test.name))
        elif _class_fails(test, settings):
            failed.append(shares)
        elif test.champion and not test.candidate:
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
        check="champion_classes",
        passed=not failed and (not empty or settings.max_class_drop is None),
        expected=expected,
        received=received,
        message=" ".join(messages),
    )


def _listed(classes: Sequence[str]) -> str:
    more = f" and {len(classes) - 3} more" if len(classes) > 3 else ""
    return "; ".join(classes[:3]) + more


def _class_fails(test: ClassTest, settings: ChampionSettings) -> bool:
    if test.candidate is None or test.champion is None or test.p_worse is None:
        return True
    if settings.max_class_drop is not None:
        return test.champion - test.candidate > settings.max_class_drop + _ROUNDING
    return test.p_worse <= settings.level


def _share(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.2%}"


def _latency(comparison: ChampionComparison, settings: ChampionSettings) -> Reason:
    """Compare the latencies at batch 1, or the times in batches if an engine has no latency."""
    ours, theirs = comparison.candidate.latency_ms_p50, comparison.champion.latency_ms_p50
    where = "at batch 1"
    ours_rate, theirs_rate = comparison.candidate.throughput, comparison.champion.throughput
    if (ours is None or theirs is None) and ours_rate and theirs_rate:
        ours, theirs, where = 1000 / ours_rate, 1000 / theirs_rate, "per image in batches"
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
        gains.append(f"significantly more accurate (p={_p(p_better)})")
    ours, theirs = comparison.candidate, comparison.champion
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
            f"significantly more accurate (McNemar, level {settings.level:g}), or "
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
