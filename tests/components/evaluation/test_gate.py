"""The promotion gate's checks: at the bound, past it, not measured."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest

from qatline.components.artifacts import Baseline, Quantized, ResultRow, Verdict
from qatline.components.artifacts.comparison import ChanceTest
from qatline.components.artifacts.evaluation import FileCheck, GroupQuality
from qatline.components.artifacts.exported import FindingRecord
from qatline.components.artifacts.metric import ACCURACY
from qatline.components.artifacts.promotion import Reason
from qatline.components.evaluation.gate import judge, ptq_suffices, speedup
from qatline.components.settings import GateSettings

GOOD: dict[str, dict[str, Any]] = {
    "fp32": {"accuracy": 0.98},
    "fp32_engine": {"accuracy": 0.98, "latency_ms_p50": 1.0},
    "qat_engine": {
        "accuracy": 0.98,
        "latency_ms_p50": 0.5,
        "int8_layers": 9,
        "weighted_layers": 10,
    },
}
SOUND: dict[str, Any] = {
    "infrastructure": FileCheck(passed=True, message="64 requests equal."),
    "verification": [],
    "analysis": [],
    "chance": ChanceTest(samples=100, value=0.98, chance=0.1, p_value=0.0005),
}


def settings(**bounds: Any) -> GateSettings:
    return GateSettings.model_validate(bounds)


def verdict_with(
    bounds: dict[str, Any] | None = None, candidate: dict[str, Any] | None = None, **evidence: Any
) -> Verdict:
    results = copy.deepcopy(GOOD)
    results["qat_engine"].update(candidate or {})
    rows = {name: ResultRow.model_validate(row) for name, row in results.items()}
    return judge(rows, settings(**(bounds or {})), **{**SOUND, **records(evidence)})


def records(evidence: dict[str, Any]) -> dict[str, Any]:
    """Return the evidence as it is read from the files."""
    found: dict[str, Any] = {}
    for name, value in evidence.items():
        if isinstance(value, dict):
            found[name] = FileCheck.model_validate(value)
        elif value is not None:
            found[name] = [FindingRecord.model_validate(finding) for finding in value]
        else:
            found[name] = None
    return found


def failed(verdict: Verdict) -> list[str]:
    return [reason.check for reason in verdict.reasons if not reason.passed]


def test_sound_engine_is_promoted_with_reasons() -> None:
    verdict = verdict_with()
    assert verdict.promoted
    assert [reason.check for reason in verdict.reasons] == [
        "quality_drop",
        "chance",
        "int8_fraction",
        "speedup",
        "infrastructure",
        "verification",
        "analysis",
    ]
    assert verdict.to_dict()["verdict"] == "promote"
    assert set(verdict.to_dict()["reasons"][0]) == {
        "check",
        "passed",
        "expected",
        "received",
        "message",
    }


def test_optional_bounds_add_their_checks() -> None:
    verdict = verdict_with({"required": 0.98, "min_speedup": 2.0})
    assert verdict.promoted
    assert {"quality", "speedup"} <= {reason.check for reason in verdict.reasons}


@pytest.mark.parametrize(
    ("bounds", "candidate", "check"),
    [
        ({"max_drop": 0.01}, {"accuracy": 0.97}, None),
        ({"max_drop": 0.01}, {"accuracy": 0.9699}, "quality_drop"),
        ({"max_drop": 0.0}, {"accuracy": 0.98}, None),
        ({"required": 0.98}, {}, None),
        ({"required": 0.981}, {}, "quality"),
        ({"min_int8_fraction": 0.9}, {}, None),
        ({"min_int8_fraction": 0.9}, {"int8_layers": 8}, "int8_fraction"),
        ({"min_speedup": 2.0}, {"latency_ms_p50": 0.5}, None),
        ({"min_speedup": 2.0}, {"latency_ms_p50": 0.51}, "speedup"),
    ],
)
def test_bounds_hold_exactly(
    bounds: dict[str, Any], candidate: dict[str, Any], check: str | None
) -> None:
    assert failed(verdict_with(bounds, candidate)) == ([check] if check else [])


@pytest.mark.parametrize("missing", [None, math.nan, math.inf, "0.99", True])
def test_what_was_not_measured_does_not_pass(missing: object) -> None:
    candidate = {"accuracy": missing, "int8_layers": missing, "latency_ms_p50": missing}
    verdict = verdict_with({"required": 0.1, "min_speedup": 1.0}, candidate)
    assert failed(verdict) == ["quality_drop", "quality", "int8_fraction", "speedup"]
    assert all("not measured" in reason.received for reason in verdict.reasons if not reason.passed)


def test_engine_that_is_not_there_is_rejected() -> None:
    verdict = judge({"fp32": ResultRow(accuracy=0.9)}, settings(), **SOUND)
    assert not verdict.promoted


def test_accuracy_gain_is_no_loss() -> None:
    reason = verdict_with(candidate={"accuracy": 0.99}).reasons[0]
    assert reason.passed
    assert "no worse" in reason.message


@pytest.mark.parametrize(
    ("evidence", "check"),
    [
        ({"infrastructure": None}, "infrastructure"),
        (
            {"infrastructure": {"passed": False, "message": "outputs differ by 3.0"}},
            "infrastructure",
        ),
        ({"infrastructure": {"passed": "yes"}}, "infrastructure"),
        ({"verification": None}, "verification"),
        (
            {"verification": [{"node": "quant_conv", "rule": "P4", "message": "no zero point"}]},
            "verification",
        ),
        ({"verification": [{"code": "V20", "severity": "warning", "message": "reformat"}]}, None),
        ({"analysis": None}, "analysis"),
        (
            {"analysis": [{"code": "V03", "severity": "error", "message": "pair on a bias"}]},
            "analysis",
        ),
        ({"analysis": [{"code": "V03", "severity": "warning", "message": "reformat"}]}, None),
    ],
)
def test_evidence_beyond_the_figures(evidence: dict[str, Any], check: str | None) -> None:
    assert failed(verdict_with(**evidence)) == ([check] if check else [])


def test_finding_is_named_in_the_reason() -> None:
    findings = [
        {"node": "quant_conv", "rule": "P4", "message": "no zero point"},
        {"message": "other"},
    ]
    reason = next(
        reason
        for reason in verdict_with(verification=findings).reasons
        if reason.check == "verification"
    )
    assert reason.received == "2 findings"
    assert reason.message == "P4 quant_conv: no zero point (and 1 more)"


def test_speedup_needs_both_latencies() -> None:
    reference = ResultRow(latency_ms_p50=1.0)
    assert speedup(ResultRow(latency_ms_p50=0.5), reference) == 2.0
    assert speedup(ResultRow(), reference) is None
    assert speedup(ResultRow(latency_ms_p50=0.0), reference) is None


def test_judge_names_the_framework_of_the_reference() -> None:
    rows = copy.deepcopy(GOOD)
    rows["fp32"]["backend"] = "torch"
    checked = {name: ResultRow.model_validate(row) for name, row in rows.items()}
    reason = judge(checked, GateSettings(), **SOUND).reasons[0]
    assert (
        reason.message == "The INT8 engine is no worse than FP32 PyTorch (98.00% against 98.00%)."
    )
    assert reason.expected == "at most 1.00% below FP32 PyTorch"


def judge_speed(
    floats: dict[str, dict[str, Any]], candidate: dict[str, Any], **bounds: Any
) -> Reason:
    """Judge the speed beside float engines, of which FP32 takes 1 ms and does 100 samples/s."""
    rows = copy.deepcopy(GOOD)
    rows["fp32_engine"] |= {"throughput": 100.0, "batch_size": 32}
    for name, row in floats.items():
        rows[name] = {"accuracy": 0.98, "batch_size": 32, **row}
    rows["qat_engine"] |= {"batch_size": 32, **candidate}
    checked = {name: ResultRow.model_validate(row) for name, row in rows.items()}
    reasons = judge(checked, settings(**bounds), **SOUND).reasons
    return next(reason for reason in reasons if reason.check == "speedup")


@pytest.mark.parametrize(
    ("latency", "throughput", "passed"),
    [
        (1.2, 80, False),  # slower at both
        (1.2, 120, True),
        (0.9, 80, True),
        (0.99, 101, False),  # within the noise of a measurement
        (1 / 1.02, 80, True),
        (1.0, 101.9, False),
        (None, 120, True),  # an engine for one batch size
        (None, 80, False),
        (None, None, False),
    ],
)
def test_judge_wants_int8_faster_at_one_batch_size(
    latency: float | None, throughput: float | None, passed: bool
) -> None:
    reason = judge_speed({}, {"latency_ms_p50": latency, "throughput": throughput})
    assert reason.passed == passed
    assert ("keep FP32" in reason.message) == (not passed and bool(latency or throughput))


@pytest.mark.parametrize("half", ["fp16", "bf16"])
def test_judge_compares_with_the_fastest_float_engine(half: str) -> None:
    int8 = {"latency_ms_p50": 0.5, "throughput": 200}
    fast = {"latency_ms_p50": 0.4, "throughput": 250}
    reason = judge_speed({f"{half}_engine": fast}, int8)
    assert not reason.passed
    name = half.upper()
    assert reason.received == f"0.80 times {name} at batch 1, 0.80 times {name} at batch 32"
    assert reason.message.endswith(f"INT8 gains too little on this machine: keep {name}.")
    slow = {"latency_ms_p50": 2.0, "throughput": 50}
    reason = judge_speed({f"{half}_engine": slow}, int8)
    assert reason.passed
    assert reason.received == "2.00 times FP32 at batch 1, 2.00 times FP32 at batch 32"
    # The fastest engine of each batch size counts.
    mixed = {"latency_ms_p50": 0.4, "throughput": 50}
    reason = judge_speed({f"{half}_engine": mixed}, int8)
    assert reason.received == f"0.80 times {name} at batch 1, 2.00 times FP32 at batch 32"
    assert reason.passed


def test_judge_compares_with_no_inaccurate_float_engine() -> None:
    fast = {"latency_ms_p50": 0.1, "throughput": 900}
    int8 = {"latency_ms_p50": 0.5, "throughput": 200}
    assert judge_speed({"fp16_engine": {**fast, "accuracy": 0.9}}, int8).passed
    assert judge_speed({"fp16_engine": {**fast, "accuracy": None}}, int8).passed
    assert not judge_speed({"fp16_engine": {**fast, "accuracy": 0.97}}, int8).passed


def test_min_speedup_holds_against_the_fastest_float_engine() -> None:
    fast = {"bf16_engine": {"latency_ms_p50": 0.75}}
    int8 = {"latency_ms_p50": 0.5, "throughput": 500}
    assert judge_speed(fast, int8, min_speedup=1.5).passed
    reason = judge_speed(fast, int8, min_speedup=1.6)
    assert not reason.passed
    assert reason.expected == "at least 1.60 times the fastest float engine's speed at batch 1"
    assert reason.received == "1.50 times BF16 at batch 1"


@pytest.mark.parametrize(
    ("accuracy", "chance", "p_value", "passed"),
    [
        (0.3, 0.1, 0.05, True),
        (0.3, 0.1, 0.051, False),
        (0.1, 0.1, 0.01, False),
        (0.3, 0.1, None, False),
        (None, 0.1, 0.01, False),
    ],
)
def test_judge_never_promotes_what_is_not_better_than_chance(
    accuracy: float | None, chance: float, p_value: float | None, passed: bool
) -> None:
    test = ChanceTest(samples=50, value=accuracy, chance=chance, p_value=p_value)
    lenient = {"max_drop": 1.0, "min_int8_fraction": 0.0, "min_speedup": 0.01}
    rows = {name: ResultRow.model_validate(row) for name, row in GOOD.items()}
    verdict = judge(rows, settings(**lenient), **{**SOUND, "chance": test})
    assert failed(verdict) == ([] if passed else ["chance"])


def test_judge_without_chance_test_rejects() -> None:
    rows = {name: ResultRow.model_validate(row) for name, row in GOOD.items()}
    verdict = judge(rows, settings(), **{**SOUND, "chance": None})
    assert failed(verdict) == ["chance"]


def by_class(**accuracies: float | None) -> list[GroupQuality]:
    """Return classes of three samples that FP32 recognizes, with the engine's accuracies."""
    found = []
    for name, accuracy in accuracies.items():
        measured = {"fp32": 1.0, "qat_engine": accuracy}
        row = {"name": name, "samples": 3, "values": measured}
        found.append(GroupQuality.model_validate(row))
    return found


def judge_classes(classes: list[GroupQuality], **bounds: Any) -> dict[str, Reason]:
    rows = {name: ResultRow.model_validate(row) for name, row in GOOD.items()}
    reasons = judge(rows, settings(**bounds), **SOUND, groups=classes).reasons
    return {reason.check: reason for reason in reasons}


@pytest.mark.parametrize(
    ("bound", "worst", "passed"),
    [(0.5, 0.5, True), (0.51, 0.5, False), (0.5, 0.0, False), (0.0, 0.0, True)],
)
def test_class_floor_holds_for_the_worst_class(bound: float, worst: float, passed: bool) -> None:
    reason = judge_classes(by_class(cat=0.9, dog=worst), required_per_class=bound)["group_quality"]
    assert reason.passed == passed
    assert f"{worst:.2%} on dog" in reason.message


@pytest.mark.parametrize("accuracy", [None, math.nan])
def test_class_floor_fails_unmeasured_classes(accuracy: float | None) -> None:
    classes = by_class(cat=0.9, rare=accuracy, dog=0.8)
    reason = judge_classes(classes, required_per_class=0.5)["group_quality"]
    assert not reason.passed
    assert reason.received == "80.00% on dog; not measured on rare"
    assert "add test samples" in reason.message
    assert "remove gate.required_per_class" in reason.message


def test_class_floor_counts_many_unmeasured_classes() -> None:
    classes = by_class(**dict.fromkeys("abcdefg"))
    reason = judge_classes(classes, required_per_class=0.0)["group_quality"]
    assert reason.received == "not measured on a, b, c, d, e and 2 more"


def test_lost_class_is_named_without_a_floor() -> None:
    reason = judge_classes(by_class(cat=1.0, rare=0.0))["quality_drop"]
    assert "Lost classes: rare from 100.00% to 0.00% (3 samples)" in reason.message
    for other in (0.1, None):
        assert "Lost" not in judge_classes(by_class(rare=other))["quality_drop"].message


def test_class_floor_without_classes_rejects() -> None:
    rows = {name: ResultRow.model_validate(row) for name, row in GOOD.items()}
    assert failed(judge(rows, settings(required_per_class=0.1), **SOUND)) == ["group_quality"]


@pytest.mark.parametrize(
    ("before", "after", "skips"),
    [(0.95, 0.945, True), (0.95, 0.939, False), (0.95, 0.97, True), (None, 0.9, False)],
)
def test_ptq_suffices_within_the_bound_of_the_gate(
    tmp_path: Path, before: float | None, after: float, skips: bool
) -> None:
    for name in ("baseline", "ptq"):
        (tmp_path / name).mkdir()
    if before is not None:
        Baseline(tmp_path / "baseline").write_metrics({"validation_accuracy": before})
    # The test part says the opposite, and decides nothing.
    Quantized(tmp_path / "ptq").write_metrics({"validation_accuracy": after, "test_accuracy": 0.1})
    reason = ptq_suffices(
        Baseline(tmp_path / "baseline"), Quantized(tmp_path / "ptq"), ACCURACY, GateSettings()
    )
    assert bool(reason) is skips


def test_reason_names_both_accuracies(tmp_path: Path) -> None:
    for name in ("baseline", "ptq"):
        (tmp_path / name).mkdir()
        Baseline(tmp_path / name).write_metrics({"validation_accuracy": 0.95})
    reason = ptq_suffices(
        Baseline(tmp_path / "baseline"), Quantized(tmp_path / "ptq"), ACCURACY, GateSettings()
    )
    assert "95.00% on the validation part against 95.00% in FP32" in reason
