"""The promotion gate: measurements in, a verdict with a reason for each check out.

The gate fails closed: a figure that was not measured, or a check that was not run, counts against
the engine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from components.evaluation.rows import CANDIDATE, FP32_ENGINE, REFERENCE
from components.settings import GateSettings

# Accuracies are ratios of counts: two that are meant to be equal can differ in the last bit.
_ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True)
class Reason:
    """One check of the gate.

    Args:
        check: Stable name, such as ``accuracy_drop``.
        passed: Whether the engine passed it.
        expected: The bound, in words.
        received: The measurement, in words.
        message: One sentence for people.
    """

    check: str
    passed: bool
    expected: str
    received: str
    message: str


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The gate's decision, with one reason per check in a fixed order."""

    verdict: Literal["promote", "reject"]
    reasons: tuple[Reason, ...]

    @property
    def promoted(self) -> bool:
        """Whether every check passed."""
        return self.verdict == "promote"

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types: ``{"verdict": ..., "reasons": [...]}``."""
        return {"verdict": self.verdict, "reasons": [asdict(reason) for reason in self.reasons]}


def judge(
    results: Mapping[str, Mapping[str, Any]],
    settings: GateSettings,
    *,
    infrastructure: Mapping[str, Any] | None,
    verification: Sequence[Mapping[str, Any]] | None,
    analysis: Sequence[Mapping[str, Any]] | None,
    candidate: str = CANDIDATE,
) -> Verdict:
    """Judge an engine.

    Args:
        results: Rows of the evaluation by name; ``fp32`` is the Keras reference, ``fp32_engine``
            the engine that the speedup is measured against. Accuracies in [0, 1], latencies in
            milliseconds.
        settings: The bounds.
        infrastructure: The fresh-process check of the engine file: ``{"passed": bool, "message":
            str}``, or None if it was not run.
        verification: Findings about the exported graph, or None if nobody looked. One of severity
            ``error`` means that it is not what the plan says.
        analysis: Findings of the fusion analysis, likewise.
        candidate: Name of the row that is judged.

    Returns:
        ``promote`` if every check passed, else ``reject``. Bounds that are not set give no reason.
    """
    row = results.get(candidate, {})
    reasons = [_accuracy_drop(row, results.get(REFERENCE, {}), settings)]
    if settings.min_accuracy is not None:
        reasons.append(_min_accuracy(row, settings.min_accuracy))
    reasons.append(_int8_fraction(row, settings))
    if settings.min_speedup is not None:
        reasons.append(_speedup(row, results.get(FP32_ENGINE, {}), settings.min_speedup))
    reasons.append(_infrastructure(infrastructure))
    reasons.append(_verification(verification))
    reasons.append(_analysis(analysis))
    return Verdict(
        verdict="promote" if all(reason.passed for reason in reasons) else "reject",
        reasons=tuple(reasons),
    )


def speedup(row: Mapping[str, Any], reference: Mapping[str, Any]) -> float | None:
    """Return how many times faster ``row`` is at batch 1 than ``reference``, by median latency, or None."""
    ours, theirs = _number(row.get("latency_ms_p50")), _number(reference.get("latency_ms_p50"))
    return theirs / ours if ours and theirs else None


def _accuracy_drop(
    row: Mapping[str, Any], reference: Mapping[str, Any], settings: GateSettings
) -> Reason:
    ours, theirs = _number(row.get("accuracy")), _number(reference.get("accuracy"))
    expected = f"at most {settings.max_accuracy_drop:.2%} below FP32 Keras"
    if ours is None or theirs is None:
        who = "The INT8 engine" if ours is None else "FP32 Keras"
        message = f"{who} has no measured accuracy, so the drop is unknown."
        return Reason(
            check="accuracy_drop",
            passed=False,
            expected=expected,
            received="not measured",
            message=message,
        )
    drop = theirs - ours
    passed = drop <= settings.max_accuracy_drop + _ROUNDING
    moved = (
        f"loses {drop * 100:.2f} percentage points against"
        if drop > _ROUNDING
        else "is no worse than"
    )
    return Reason(
        check="accuracy_drop",
        passed=passed,
        expected=expected,
        received=f"{ours:.2%} against {theirs:.2%}",
        message=f"The INT8 engine {moved} FP32 Keras ({ours:.2%} against {theirs:.2%}).",
    )


def _min_accuracy(row: Mapping[str, Any], bound: float) -> Reason:
    ours = _number(row.get("accuracy"))
    passed = ours is not None and ours >= bound - _ROUNDING
    received = "not measured" if ours is None else f"{ours:.2%}"
    message = f"Accuracy of the INT8 engine: {received}; asked for: at least {bound:.2%}."
    return Reason(
        check="min_accuracy",
        passed=passed,
        expected=f"at least {bound:.2%}",
        received=received,
        message=message,
    )


def _int8_fraction(row: Mapping[str, Any], settings: GateSettings) -> Reason:
    int8, weighted = _number(row.get("int8_layers")), _number(row.get("weighted_layers"))
    bound = settings.min_int8_fraction
    expected = f"at least {bound:.0%} of the weighted layers in INT8"
    if int8 is None or not weighted:
        message = "The engine does not say in which precision its layers run."
        return Reason(
            check="int8_fraction",
            passed=False,
            expected=expected,
            received="not measured",
            message=message,
        )
    received = f"{int8:.0f} of {weighted:.0f} ({int8 / weighted:.0%})"
    message = f"{int8:.0f} of {weighted:.0f} weighted layers run in INT8."
    passed = int8 / weighted >= bound - _ROUNDING
    return Reason(
        check="int8_fraction", passed=passed, expected=expected, received=received, message=message
    )


def _speedup(row: Mapping[str, Any], reference: Mapping[str, Any], bound: float) -> Reason:
    ratio = speedup(row, reference)
    received = "not measured" if ratio is None else f"{ratio:.2f} times"
    return Reason(
        check="speedup",
        passed=ratio is not None and ratio >= bound,
        expected=f"at least {bound:.2f} times the FP32 engine's speed",
        received=received,
        message=f"Speed at batch 1 against the FP32 engine, by median latency: {received}.",
    )


def _infrastructure(check: Mapping[str, Any] | None) -> Reason:
    passed = check is not None and check.get("passed") is True
    if check is None:
        received, message = "not run", "The engine file was not checked in a fresh process."
    else:
        received = "passed" if passed else "failed"
        message = str(
            check.get("message") or f"The engine file, loaded in a fresh process: {received}."
        )
    return Reason(
        check="infrastructure",
        passed=passed,
        expected="the engine file answers in a fresh process as the ONNX reference does",
        received=received,
        message=message,
    )


def _verification(findings: Sequence[Mapping[str, Any]] | None) -> Reason:
    return _findings(
        "verification",
        _errors(findings),
        expected="an exported graph that holds exactly the plan's quantizers",
        clean="The exported graph holds exactly the plan's quantizers.",
        unknown="The exported graph was not verified.",
    )


def _analysis(findings: Sequence[Mapping[str, Any]] | None) -> Reason:
    return _findings(
        "analysis",
        _errors(findings),
        expected="no error findings of the fusion analysis",
        clean="The fusion analysis found no error.",
        unknown="The fusion analysis was not run.",
    )


def _errors(findings: Sequence[Mapping[str, Any]] | None) -> list[Mapping[str, Any]] | None:
    """Leave warnings and hints out: they cost speed, and the measurements speak for themselves."""
    return (
        None
        if findings is None
        else [item for item in findings if item.get("severity", "error") == "error"]
    )


def _findings(
    check: str,
    findings: Sequence[Mapping[str, Any]] | None,
    *,
    expected: str,
    clean: str,
    unknown: str,
) -> Reason:
    if findings is None:
        return Reason(
            check=check, passed=False, expected=expected, received="not run", message=unknown
        )
    if not findings:
        return Reason(
            check=check, passed=True, expected=expected, received="no findings", message=clean
        )
    first = findings[0]
    label = " ".join(str(first[key]) for key in ("code", "rule", "node") if first.get(key))
    more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
    plural = "finding" if len(findings) == 1 else "findings"
    return Reason(
        check=check,
        passed=False,
        expected=expected,
        received=f"{len(findings)} {plural}",
        message=f"{label}: {first.get('message', '')}{more}".removeprefix(": "),
    )


def _number(value: object) -> float | None:
    """Return a finite number, or None for anything else: a NaN must never pass a bound."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)
