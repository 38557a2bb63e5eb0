"""A sample's mutation score with confidence interval, and the survivors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scripts.mutation.session import CAUGHT

_Z = 1.959964  # normal quantile of a two-sided 95 % interval


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One mutant's outcome for the report: ``killed``, ``timeout``, ``survived`` or ``equivalent``."""

    module: str
    outcome: str
    diff: str = ""
    reason: str = ""


def wilson_interval(successes: int, count: int) -> tuple[float, float]:
    """Return a share's 95 % confidence interval in [0, 1] (Wilson 1927)."""
    if count == 0:
        return 0.0, 1.0
    share = successes / count
    center = share + _Z**2 / (2 * count)
    half = _Z * math.sqrt(share * (1 - share) / count + _Z**2 / (4 * count**2))
    scale = 1 + _Z**2 / count
    return max(0.0, (center - half) / scale), min(1.0, (center + half) / scale)


def score(verdicts: Iterable[Verdict]) -> float:
    """Return the share of non-equivalent mutants caught; 1.0 of none."""
    judged = [each for each in verdicts if each.outcome != "equivalent"]
    return sum(each.outcome in CAUGHT for each in judged) / len(judged) if judged else 1.0


def render(verdicts: Sequence[Verdict]) -> str:
    """Return the report: a row per package, then the survivors' diffs."""
    groups: dict[str, list[Verdict]] = {}
    for each in sorted(verdicts, key=lambda verdict: verdict.module):
        groups.setdefault(each.module.rpartition("/")[0], []).append(each)
    groups["all"] = list(verdicts)
    lines = [
        f"{'package':<28}{'mutants':>8}{'equivalent':>11}{'killed':>8}{'timeout':>8}{'survived':>9}  score (95 %)"
    ]
    lines += [_row(name, group) for name, group in groups.items()]
    for each in groups["all"]:
        if each.outcome == "survived":
            lines += ["", "SURVIVED", each.diff]
        elif each.outcome == "equivalent":
            lines += ["", f"EQUIVALENT: {each.reason}", each.diff]
    return "\n".join(lines) + "\n"


def _row(name: str, verdicts: Sequence[Verdict]) -> str:
    counts = {
        kind: sum(each.outcome == kind for each in verdicts)
        for kind in ("killed", "timeout", "survived")
    }
    judged = sum(counts.values())
    low, high = wilson_interval(counts["killed"] + counts["timeout"], judged)
    return (
        f"{name:<28}{len(verdicts):>8}{len(verdicts) - judged:>11}{counts['killed']:>8}{counts['timeout']:>8}"
        f"{counts['survived']:>9}  {score(verdicts):.1%} ({low:.1%} to {high:.1%})"
    )
