"""Promotion gate: a verdict with reasons, from measurements.

The gate fails closed: missing measurements and checks count against the engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from qatline.components.artifacts.comparison import ChampionComparison, ChanceTest
from qatline.components.artifacts.evaluation import ClassAccuracy, FileCheck, ResultRow
from qatline.components.artifacts.exported import FindingRecord
from qatline.components.artifacts.promotion import Reason, Verdict
from qatline.components.artifacts.rows import (
    CANDIDATE,
    FLOAT_ENGINES,
    FP32_ENGINE,
    REFERENCE,
    reference_title,
)
from qatline.components.evaluation.champion_gate import judge_against_champion
from qatline.components.evaluation.paired import LEVEL
from qatline.components.settings.gate_settings import GateSettings

# Accuracies are ratios of counts: equal ones can differ in the last bit.
_ROUNDING = 1e-9
# Two engines of equal speed differ by a few percent from one measurement to the next.
_FASTER = 1.02
_MOST_NAMES = 5


def judge(
    rows: Mapping[str, ResultRow],
    settings: GateSettings,
    *,
    infrastructure: FileCheck | None,
    verification: Sequence[FindingRecord] | None,
    analysis: Sequence[FindingRecord] | None,
    chance: ChanceTest | None,
    classes: Sequence[ClassAccuracy] = (),
    comparison: ChampionComparison | None = None,
    candidate: str = CANDIDATE,
) -> Verdict:
    """Judge an engine.

    Args:
        rows: rows of the evaluation by name; ``fp32`` is the reference of the accuracy. The speed
            is compared with the fastest float engine (``fp32_engine``, ``fp16_engine``,
            ``bf16_engine``) with an accuracy within ``max_accuracy_drop``.
        settings: the bounds.
        infrastructure: result of the engine file's check in a fresh process; None if not run.
        verification: findings about the exported graph; None if not verified. Findings of severity
            ``error`` mean that it deviates from the plan.
        analysis: findings of the fusion analysis; None if not run.
        chance: test against chance; None if not run. Engines that are not better than chance always
            fail, independent of the settings.
        classes: accuracies by class. Unmeasured classes fail the floor. Classes recognized by the
            reference but never by the engine are listed, even without a floor.
        comparison: comparison of candidate and champion; None without a registry.
        candidate: name of the judged row.

    Returns:
        ``promote`` if every check passed, else ``reject``. Unset bounds add no reason.
    """
    row = rows.get(candidate, ResultRow())
    lost = _lost_classes(classes, candidate)
    reasons = [_accuracy_drop(row, rows.get(REFERENCE, ResultRow()), settings, lost)]
    reasons.append(_chance(chance))
    if settings.min_accuracy is not None:
        reasons.append(_min_accuracy(row, settings.min_accuracy))
    if settings.min_class_accuracy is not None:
        reasons.append(_class_floor(classes, candidate, settings.min_class_accuracy))
    reasons.append(_int8_fraction(row, settings))
    reasons.append(_speedup(row, _float_engines(rows, settings), settings.min_speedup))
    reasons.append(_infrastructure(infrastructure))
    reasons.append(_verification(verification))
    reasons.append(_analysis(analysis))
    reasons += judge_against_champion(comparison, settings.champion)
    return Verdict(
        verdict="promote" if all(reason.passed for reason in reasons) else "reject",
        reasons=tuple(reasons),
    )


def speedup(row: ResultRow, reference: ResultRow) -> float | None:
    """Return ``reference``'s median latency over ``row``'s at batch 1, or None."""
    ours, theirs = row.latency_ms_p50, reference.latency_ms_p50
    return theirs / ours if ours and theirs else None


def _accuracy_drop(
    row: ResultRow, reference: ResultRow, settings: GateSettings, lost: str
) -> Reason:
    ours, theirs = row.accuracy, reference.accuracy
    fp32 = reference_title(reference.backend)
    expected = f"at most {settings.max_accuracy_drop:.2%} below {fp32}"
    if ours is None or theirs is None:
        who = "The INT8 engine" if ours is None else fp32
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
        message=f"The INT8 engine {moved} {fp32} ({ours:.2%} against {theirs:.2%}).{lost}",
    )


def _min_accuracy(row: ResultRow, bound: float) -> Reason:
    ours = row.accuracy
    passed = ours is not None and ours >= bound - _ROUNDING
    received = "not measured" if ours is None else f"{ours:.2%}"
    message = f"Accuracy of the INT8 engine: {received}; required: at least {bound:.2%}."
    return Reason(
        check="min_accuracy",
        passed=passed,
        expected=f"at least {bound:.2%}",
        received=received,
        message=message,
    )


def _chance(test: ChanceTest | None) -> Reason:
    expected = f"more accurate than chance (permutation test, level {LEVEL:g})"
    if test is None or test.p_value is None or test.accuracy is None or test.chance is None:
        return Reason(
            check="chance",
            passed=False,
            expected=expected,
            received="not measured",
            message="The INT8 engine was not compared with chance.",
        )
    passed = test.p_value <= LEVEL and test.accuracy > test.chance
    comparison = "better" if passed else "not better"
    return Reason(
        check="chance",
        passed=passed,
        expected=expected,
        received=f"{test.accuracy:.2%} against {test.chance:.2%}, p={test.p_value:.2g}",
        message=(
            f"The INT8 engine is {comparison} than chance ({test.accuracy:.2%} against "
            f"{test.chance:.2%}, p={test.p_value:.2g})."
        ),
    )


def _class_floor(classes: Sequence[ClassAccuracy], candidate: str, bound: float) -> Reason:
    measured, unmeasured = [], []
    for each in classes:
        accuracy = each.accuracy.get(candidate)
        if accuracy is None:
            unmeasured.append(str(each.name))
        else:
            measured.append((accuracy, str(each.name)))
    worst, name = min(measured, default=(None, ""))
    received = "not measured" if worst is None else f"{worst:.2%} on {name}"
    message = f"Worst class of the INT8 engine: {received}; required: at least {bound:.2%}."
    if unmeasured:
        missing = f"not measured on {_listed(unmeasured)}"
        received = missing if worst is None else f"{received}; {missing}"
        message = (
            f"The INT8 engine was {missing}: add test samples of each of these classes, or remove "
            f"gate.min_class_accuracy. {message}"
        )
    return Reason(
        check="class_accuracy",
        passed=worst is not None and worst >= bound - _ROUNDING and not unmeasured,
        expected=f"at least {bound:.2%} on each class",
        received=received,
        message=message,
    )


def _lost_classes(classes: Sequence[ClassAccuracy], candidate: str) -> str:
    """Return a sentence on classes recognized by FP32 but never by the engine, or an empty string.

    Rare classes hardly affect the overall accuracy.
    """
    lost = []
    for each in classes:
        before = each.accuracy.get(REFERENCE)
        if before and each.accuracy.get(candidate) == 0:
            lost.append(f"{each.name} from {before:.2%} to 0.00% ({each.samples or 0:.0f} samples)")
    if not lost:
        return ""
    return f" Lost classes: {_listed(lost)}; gate.min_class_accuracy rejects such engines."


def _listed(names: Sequence[str]) -> str:
    """Join up to ``_MOST_NAMES`` names; count the remaining ones."""
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def _int8_fraction(row: ResultRow, settings: GateSettings) -> Reason:
    int8, weighted = row.int8_layers, row.weighted_layers
    bound = settings.min_int8_fraction
    expected = f"at least {bound:.0%} of the weighted layers in INT8"
    if int8 is None or not weighted:
        message = "The engine reports no precision of its layers."
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


def _float_engines(
    rows: Mapping[str, ResultRow], settings: GateSettings
) -> list[tuple[str, ResultRow]]:
    """Return precision and row of each float engine that could replace the INT8 engine.

    FP32 always qualifies; 16-bit engines only with an accuracy accepted by the gate.
    """
    expected, found = rows.get(REFERENCE, ResultRow()).accuracy, []
    for name, precision in FLOAT_ENGINES.items():
        row = rows.get(name, ResultRow())
        is_accurate = (
            row.accuracy is not None
            and expected is not None
            and expected - row.accuracy <= settings.max_accuracy_drop + _ROUNDING
        )
        if name == FP32_ENGINE or is_accurate:
            found.append((precision, row))
    return found


def _speedup(
    row: ResultRow, engines: Sequence[tuple[str, ResultRow]], bound: float | None
) -> Reason:
    """Compare the speed with the fastest float engine, separately for each batch size.

    A configured bound applies to batch 1; without one, any batch size may be faster.
    """
    single = [(ratio, name) for name, each in engines if (ratio := speedup(row, each)) is not None]
    batch = []
    for name, each in engines:
        if row.throughput and each.throughput and row.batch_size == each.batch_size != 1:
            batch.append((row.throughput / each.throughput, name))
    sizes = [("batch 1", single)]
    if bound is None:
        sizes.append((f"batch {row.batch_size or '?'}", batch))
    # The smallest ratio is the one over the fastest engine.
    measured = [(size, *min(ratios)) for size, ratios in sizes if ratios]
    received = ", ".join(f"{ratio:.2f} times {name} at {size}" for size, ratio, name in measured)
    least, where = (_FASTER, "one batch size") if bound is None else (bound, "batch 1")
    passed = any(ratio >= least for _, ratio, _ in measured)
    message = f"Speed of INT8 against the fastest float engine: {received or 'not measured'}."
    if measured and not passed:
        names = " or ".join(dict.fromkeys(name for _, _, name in measured))
        message += f" INT8 gains too little on this machine: keep {names}."
    return Reason(
        check="speedup",
        passed=passed,
        expected=f"at least {least:.2f} times the fastest float engine's speed at {where}",
        received=received or "not measured",
        message=message,
    )


def _infrastructure(check: FileCheck | None) -> Reason:
    passed = check is not None and check.passed
    if check is None:
        received, message = "not run", "The engine file was not checked in a fresh process."
    else:
        received = "passed" if passed else "failed"
        message = check.message or f"The engine file, loaded in a fresh process: {received}."
    return Reason(
        check="infrastructure",
        passed=passed,
        expected="the engine file answers in a fresh process as the ONNX reference does",
        received=received,
        message=message,
    )


def _verification(findings: Sequence[FindingRecord] | None) -> Reason:
    return _findings(
        "verification",
        _errors(findings),
        expected="an exported graph that holds exactly the plan's quantizers",
        clean="The exported graph holds exactly the plan's quantizers.",
        unknown="The exported graph was not verified.",
    )


def _analysis(findings: Sequence[FindingRecord] | None) -> Reason:
    return _findings(
        "analysis",
        _errors(findings),
        expected="no error findings of the fusion analysis",
        clean="The fusion analysis found no error.",
        unknown="The fusion analysis was not run.",
    )


def _errors(findings: Sequence[FindingRecord] | None) -> list[FindingRecord] | None:
    """Return the errors only.

    Warnings and hints concern speed, a separate measurement.
    """
    return None if findings is None else [finding for finding in findings if finding.is_error]


def _findings(
    check: str,
    findings: Sequence[FindingRecord] | None,
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
    label = " ".join(filter(None, (first.code, first.rule, first.node)))
    more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
    plural = "finding" if len(findings) == 1 else "findings"
    return Reason(
        check=check,
        passed=False,
        expected=expected,
        received=f"{len(findings)} {plural}",
        message=f"{label}: {first.message}{more}".removeprefix(": "),
    )
