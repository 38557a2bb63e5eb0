"""Step promote: the verdict on the QAT engine, and the report."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from components.artifacts import Baseline, Evaluation, Exported, Promotion, Verdict
from components.artifacts.evaluation import Measurements
from components.artifacts.exported import Analysis, ExportRecord
from components.artifacts.models import ModelInfo
from components.evaluation.paired import compare_with_chance
from components.evaluation.rows import CANDIDATE, FP32_ENGINE, REFERENCE
from components.gate import judge, speedup
from components.report import ReportFolders, render_report
from components.runtime.events import Progress
from components.settings import GateSettings
from components.tracking.model_names import registered_name
from components.variants import CANDIDATE_VARIANT
from qat_lib.errors import StepError

_T = TypeVar("_T")


def promote_step(
    dataset: Path,
    baseline: Path,
    ptq: Path,
    qat: Path,
    onnx: Path,
    engines: Path,
    evaluation: Path,
    out: Path,
    *,
    gate: GateSettings,
    seed: int,
    progress: Progress,
) -> dict[str, float]:
    """Judge the QAT engine and write the report.

    Args:
        dataset: directory of prepare_data.
        baseline: directory of train_baseline.
        ptq: directory of quantize_model.
        qat: directory of finetune_qat.
        onnx: directory of export_onnx; its verification and its analysis are evidence.
        engines: directory of build_engine.
        evaluation: directory of evaluate; its results are evidence.
        out: existing empty directory; receives ``verdict.json``, ``report.html``, and, if the
            engine is promoted,
            ``champion.onnx``: the graph that it was built from, which the tracking store registers.
        gate: the bounds.
        seed: the run's seed, for the report.
        progress: told about the two parts of the work, and warned of each check that failed.

    Returns:
        ``promoted`` (1 or 0), ``checks`` and ``checks_failed``, and where they were measured
        ``accuracy``, ``accuracy_drop`` (FP32 minus the engine) and ``speedup``.

    Raises:
        StepError: ``evaluation.json`` is missing or unreadable: without it there is nothing to
            judge.
    """
    progress.update("judging", 0, 2)
    measured = Evaluation(evaluation).measurements()
    exported, promotion = Exported(onnx), Promotion(out)
    exports = _readable(exported.summary, dict[str, ExportRecord]())
    verdict = judge(
        measured.rows,
        gate,
        infrastructure=measured.infrastructure_check,
        verification=exports.get(CANDIDATE_VARIANT, ExportRecord()).verification,
        analysis=_readable(exported.analysis, Analysis()).findings,
        chance=compare_with_chance(measured.confusion.get(CANDIDATE, ())),
        classes=measured.per_class,
    )
    model = _readable(Baseline(baseline).info, ModelInfo())
    promotion.write_verdict(verdict, model=registered_name(model.name or "model"))
    if verdict.promoted:
        shutil.copyfile(exported.graph(CANDIDATE_VARIANT), promotion.champion_file)
    for reason in verdict.reasons:
        if not reason.passed:
            progress.warn(f"{reason.check}: {reason.message}")
    progress.update("reporting", 1, 2)
    folders = ReportFolders(
        dataset=dataset,
        baseline=baseline,
        ptq=ptq,
        qat=qat,
        onnx=onnx,
        engines=engines,
        evaluation=evaluation,
    )
    page = render_report(folders, verdict=verdict, gate=gate, seed=seed)
    promotion.report_file.write_text(page, encoding="utf-8")
    progress.update("reporting", 2, 2)
    return _metrics(verdict, measured)


def _metrics(verdict: Verdict, measured: Measurements) -> dict[str, float]:
    failed = sum(not reason.passed for reason in verdict.reasons)
    metrics: dict[str, float] = {
        "promoted": float(verdict.promoted),
        "checks": float(len(verdict.reasons)),
        "checks_failed": float(failed),
    }
    row, reference = measured.row(CANDIDATE), measured.row(REFERENCE)
    if row.accuracy is not None:
        metrics["accuracy"] = row.accuracy
        if reference.accuracy is not None:
            metrics["accuracy_drop"] = reference.accuracy - row.accuracy
    if (factor := speedup(row, measured.row(FP32_ENGINE))) is not None:
        metrics["speedup"] = factor
    return metrics


def _readable(read: Callable[[], _T], otherwise: _T) -> _T:
    """Return what was read, or ``otherwise``.

    Missing evidence makes the gate fail, not the step.
    """
    try:
        return read()
    except StepError:
        return otherwise
