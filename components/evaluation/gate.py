"""Promotion gate: a verdict with reasons, from measurements.

The gate fails closed: missing measurements and checks count against the engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from qatline.components.artifacts import Baseline, Quantized
from qatline.components.artifacts.comparison import ChampionComparison, ChanceTest
from qatline.components.artifacts.evaluation import FileCheck, GroupQuality, ResultRow
from qatline.components.artifacts.exported import FindingRecord
from qatline.components.artifacts.metric import ACCURACY, Metric
from qatline.components.artifacts.promotion import Reason, Verdict
from qatline.components.artifacts.variants import (
    CANDIDATE,
    FLOAT_ENGINES,
    FP32_ENGINE,
    REFERENCE,
    reference_title,
)
from qatline.components.evaluation.champion_gate import judge_against_champion
from qatline.components.settings.gate_settings import GateSettings
from qatline.components.tasks.statistics import LEVEL

# Metrics are ratios of counts: equal ones can differ in the last bit.
_ROUNDING = 1e-9
# Default loss of metrics that are shares, and of others relative to the value of FP32.
_MOST_LOST, _MOST_LOST_RELATIVE = 0.01, 0.02
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
    groups: Sequence[GroupQuality] = (),
    comparison: ChampionComparison | None = None,
    candidate: str = CANDIDATE,
) -> Verdict:
    """Judge an engine.

    Args:
        rows: rows of the evaluation by name; ``fp32`` is the reference of the quality. The speed
            is compared with the fastest float engine (``fp32_engine``, ``fp16_engine``,
            ``bf16_engine``) with a quality within ``max_drop``.
        settings: the bounds.
        infrastructure: result of the engine file's check in a fresh process; None if not run.
        verification: findings about the exported graph; None if not verified. Findings of severity
            ``error`` mean that it deviates from the plan.
        analysis: findings of the fusion analysis; None if not run.
        chance: test against chance; None if not run. Engines that are not better than chance always
            fail, independent of the settings.
        groups: quality by class or other group. Unmeasured groups fail the bound. Groups recognized
            by the reference but never by the engine are listed, even without a bound.
        comparison: comparison of candidate and champion; None without a registry.
        candidate: name of the judged row.

    Returns:
        ``promote`` if every check passed, else ``reject``. Unset bounds add no reason.
    """
    row = rows.get(candidate, ResultRow())
    lost = _lost_groups(groups, candidate, row.metric)
    reasons = [_drop(row, rows.get(REFERENCE, ResultRow()), settings, lost)]
    reasons.append(_chance(chance, row.metric))
    if settings.required is not None:
        reasons.append(_required(row, settings.required))
    if settings.required_per_class is not None:
        reasons.append(_required_per_group(groups, candidate, row, settings.required_per_class))
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


def drop_allowed(
    value: float, reference: float, metric: Metric, settings: GateSettings
) -> tuple[bool, str]:
    """Return whether a loss of quality against FP32 is allowed, and the bound in words.

    Args:
        value: value of the quantized model.
        reference: value of the FP32 model.
        metric: the primary metric.
        settings: ``max_drop`` and ``max_relative_drop``; both hold where both are set.
    """
    absolute, relative = settings.max_drop, settings.max_relative_drop
    if absolute is None and relative is None:
        absolute, relative = (_MOST_LOST, None) if metric.share else (None, _MOST_LOST_RELATIVE)
    loss, allowed, words = metric.loss(value, reference), True, []
    if absolute is not None:
        allowed = loss <= absolute + _ROUNDING
        words.append(f"{metric.amount(absolute)}")
    if relative is not None:
        allowed = allowed and loss <= relative * abs(reference) + _ROUNDING
        words.append(f"{relative:.2%} of its value")
    side = "below" if metric.higher_is_better else "above"
    return allowed, f"at most {' and at most '.join(words)} {side}"


def _drop(row: ResultRow, reference: ResultRow, settings: GateSettings, lost: str) -> Reason:
    ours, theirs, metric = row.value, reference.value, row.metric
    fp32 = reference_title(reference.backend)
    _, bound = drop_allowed(0.0, 0.0, metric, settings)
    expected = f"{bound} {fp32}"
    if ours is None or theirs is None:
        who = "The INT8 engine" if ours is None else fp32
        message = f"{who} has no measured {metric.label}, so the drop is unknown."
        return Reason(
            check="quality_drop",
            passed=False,
            expected=expected,
            received="not measured",
            message=message,
        )
    passed, _ = drop_allowed(ours, theirs, metric, settings)
    loss = metric.loss(ours, theirs)
    amount = f"{loss * 100:.2f} percentage points" if metric.share else f"{loss:.3g}"
    moved = f"loses {amount} against" if loss > _ROUNDING else "is no worse than"
    received = f"{metric.text(ours)} against {metric.text(theirs)}"
    name = "" if metric.name == ACCURACY.name else f"{metric.label} "
    return Reason(
        check="quality_drop",
        passed=passed,
        expected=expected,
        received=received,
        message=f"The INT8 engine {moved} {fp32} ({name}{received}).{lost}",
    )


def _required(row: ResultRow, bound: float) -> Reason:
    metric, ours = row.metric, row.value
    passed = ours is not None and metric.loss(ours, bound) <= _ROUNDING
    expected = f"{metric.side} {metric.text(bound)}"
    received = metric.text(ours)
    message = f"{metric.heading} of the INT8 engine: {received}; required: {expected}."
    return Reason(
        check="quality", passed=passed, expected=expected, received=received, message=message
    )


def _chance(test: ChanceTest | None, metric: Metric) -> Reason:
    expected = "better than chance"
    if test is None or test.p_value is None or test.value is None or test.chance is None:
        return Reason(
            check="chance",
            passed=False,
            expected=expected,
            received="not measured",
            message="The INT8 engine was not compared with chance.",
        )
    passed = test.p_value <= LEVEL and metric.loss(test.value, test.chance) < 0
    comparison = "better" if passed else "not better"
    received = f"{metric.text(test.value)} against {metric.text(test.chance)}, p={test.p_value:.2g}"
    return Reason(
        check="chance",
        passed=passed,
        expected=f"{expected} ({test.test or f'level {LEVEL:g}'})",
        received=received,
        message=f"The INT8 engine is {comparison} than chance ({received}).",
    )


def _required_per_group(
    groups: Sequence[GroupQuality], candidate: str, row: ResultRow, bound: float
) -> Reason:
    metric, measured, unmeasured = row.metric, [], []
    for each in groups:
        value = each.values.get(candidate)
        if value is None:
            unmeasured.append(str(each.name))
        else:
            measured.append((metric.loss(value, bound), value, str(each.name)))
    # The class with the largest loss, whether the metric counts up or down.
    loss, worst, name = max(measured, default=(None, None, ""))
    received = "not measured" if worst is None else f"{metric.text(worst)} on {name}"
    expected = f"{metric.side} {metric.text(bound)}"
    message = f"Worst class of the INT8 engine: {received}; required: {expected}."
    if unmeasured:
        missing = f"not measured on {_listed(unmeasured)}"
        received = missing if worst is None else f"{received}; {missing}"
        message = (
            f"The INT8 engine was {missing}: add test samples of each of these classes, or remove "
            f"gate.required_per_class. {message}"
        )
    return Reason(
        check="group_quality",
        passed=loss is not None and loss <= _ROUNDING and not unmeasured,
        expected=f"{expected} on each class",
        received=received,
        message=message,
    )


def _lost_groups(groups: Sequence[GroupQuality], candidate: str, metric: Metric) -> str:
    """Return a sentence on classes recognized by FP32 but never by the engine, or an empty string.

    Rare classes hardly affect the overall quality.
    """
    lost = []
    for each in groups:
        before = each.values.get(REFERENCE)
        if metric.higher_is_better and before and each.values.get(candidate) == 0:
            change = f"from {metric.text(before)} to {metric.text(0.0)}"
            lost.append(f"{each.name} {change} ({each.samples or 0:.0f} samples)")
    if not lost:
        return ""
    return f" Lost classes: {_listed(lost)}; gate.required_per_class rejects such engines."


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

    FP32 always qualifies; 16-bit engines only with a quality accepted by the gate.
    """
    expected, found = rows.get(REFERENCE, ResultRow()).value, []
    for name, precision in FLOAT_ENGINES.items():
        row = rows.get(name, ResultRow())
        is_accurate = False
        if row.value is not None and expected is not None:
            is_accurate, _ = drop_allowed(row.value, expected, row.metric, settings)
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


def ptq_suffices(
    baseline: Baseline, calibrated: Quantized, metric: Metric, gate: GateSettings
) -> str:
    """Return the reason for skipping fine-tuning; empty if fine-tuning is required.

    The test part is not used: the gate judges the engine on it later.

    Args:
        baseline: the FP32 model.
        calibrated: the calibrated model.
        metric: primary metric of the task.
        gate: settings with the maximum drop of the metric.
    """
    before, after = (each.validation_value(metric.name) for each in (baseline, calibrated))
    if before is None or after is None:
        return ""
    allowed, bound = drop_allowed(after, before, metric, gate)
    if not allowed:
        return ""
    return (
        f"the calibrated model has {metric.text(after)} on the validation part against "
        f"{metric.text(before)} in FP32; the gate allows {bound} FP32"
    )
