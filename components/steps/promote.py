"""Step promote: verdict on the QAT engine, registration and report."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from qat_lib.engines import choose_backend
from qat_lib.errors import StepError
from qatline.components.artifacts import Baseline, Engines, Evaluation, Exported, Promotion, Verdict
from qatline.components.artifacts.evaluation import Measurements
from qatline.components.artifacts.exported import Analysis, ExportRecord
from qatline.components.artifacts.models import ModelInfo
from qatline.components.artifacts.promotion import PromotionOutcome
from qatline.components.artifacts.variants import (
    CANDIDATE,
    CANDIDATE_VARIANT,
    FP32_ENGINE,
    REFERENCE,
)
from qatline.components.evaluation.against_champion import compare_with_version
from qatline.components.evaluation.gate import judge, speedup
from qatline.components.registry.access import run_registry
from qatline.components.registry.registry import RegisteredVersion, Registry
from qatline.components.registry.run_candidate import RunFiles, submit_run
from qatline.components.report import ReportFolders, render_report
from qatline.components.report.model_card import model_card
from qatline.components.report.sources import read_run
from qatline.components.serving.assemble import PackageOptions, assemble_package
from qatline.components.serving.sources import ModelSource, run_source
from qatline.components.settings import (
    EngineSettings,
    GateSettings,
    PackageSettings,
    RegistrySettings,
    Settings,
)
from qatline.components.storage.published import publish_folder
from qatline.components.support.events import Progress
from qatline.components.support.model_names import registered_name

_T = TypeVar("_T")
_ENGINE = EngineSettings()
_UNNAMED = RegistrySettings()
_NO_PACKAGE = PackageSettings()


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
    engine: EngineSettings = _ENGINE,
    registry: RegistrySettings = _UNNAMED,
    package: PackageSettings = _NO_PACKAGE,
) -> dict[str, float]:
    """Judge the QAT engine, promote it in the registry, and write the report.

    Args:
        dataset: directory of prepare_data.
        baseline: directory of train_baseline.
        ptq: directory of quantize_model.
        qat: directory of finetune_qat.
        onnx: directory of export_onnx; its verification and analysis are evidence.
        engines: directory of build_engine.
        evaluation: directory of evaluate; its results are evidence.
        out: existing empty directory; receives ``verdict.json``, ``report.html``,
            ``MODEL_CARD.md``, and after a promotion ``champion.onnx``, the source graph of the engine. With a registry,
            ``registry.json`` contains the outcome.
        gate: the bounds.
        seed: seed of the run, for the report.
        progress: receives the phases, and a warning for each failed check.
        engine: settings of the engines, for a repeated comparison after a change of the champion.
        registry: the registered model.
        package: package of a promoted engine, in ``out/package``.

    Returns:
        ``promoted`` (1 or 0), ``checks`` and ``checks_failed``; if measured, the primary metric,
        its loss against FP32 (such as ``accuracy_drop``) and ``speedup``; with a registry,
        ``registered_version``.

    Raises:
        StepError: ``evaluation.json``, the basis of the verdict, is missing or unreadable.
        TrackingError: a registry is configured and the store fails.
        ConfigError: the engine does not fit the package's target.
        StorageError: the package can't be published.
    """
    progress.update("judging", 0, 2)
    measured = Evaluation(evaluation).measurements()
    promotion, model = Promotion(out), _readable(Baseline(baseline).info, ModelInfo())
    judged = _Judge(Exported(onnx), gate, registry.name or registered_name(model.name or "model"))
    verdict, outcome = judged(measured), None
    folders = ReportFolders(
        dataset=dataset,
        baseline=baseline,
        ptq=ptq,
        qat=qat,
        onnx=onnx,
        engines=engines,
        evaluation=evaluation,
    )
    card = model_card(read_run(folders), package.license)
    promotion.file(promotion.CARD).write_text(card, encoding="utf-8")
    # With a registry, the comparison with the champion may change the verdict.
    if (model_registry := run_registry(registry, progress.warn)) is not None:
        progress.update("registering", 0, 1)
        files = RunFiles(
            dataset=dataset,
            baseline=baseline,
            onnx=onnx,
            model=model,
            measured=measured,
            card=card,
        )
        again = _again(judged, measured, model_registry, files, Engines(engines), engine, seed)
        outcome = submit_run(
            model_registry, files, verdict, judge_again=again, lease=registry.lease_seconds,
            warn=progress.warn,
        )  # fmt: skip
        verdict = outcome.verdict
        promotion.write_outcome(outcome)
    promotion.write_verdict(verdict)
    if verdict.promoted:
        shutil.copyfile(judged.exported.graph(CANDIDATE_VARIANT), promotion.champion_file)
        if package.target is not None:
            _write_package(run_source(verdict.model, folders, card), promotion, package, progress)
    for reason in verdict.reasons:
        if not reason.passed:
            progress.warn(f"{reason.check}: {reason.message}")
    progress.update("reporting", 1, 2)
    page = render_report(folders, verdict=verdict, gate=gate, seed=seed)
    promotion.report_file.write_text(page, encoding="utf-8")
    progress.update("reporting", 2, 2)
    return _metrics(verdict, measured, outcome)


def _write_package(
    source: ModelSource, promotion: Promotion, settings: PackageSettings, progress: Progress
) -> None:
    """Write the package into the step's output, and publish it."""
    progress.update("packaging", 0, 1)
    options = PackageOptions(
        target=settings.target or "plain", raw=settings.raw, storage_uri=settings.publish or ""
    )
    assembled = assemble_package(source, promotion.file(promotion.PACKAGE), options)
    if settings.publish is not None:
        publish_folder(assembled.path, settings.publish)
    progress.update("packaging", 1, 1)


def promote_state(sections: Mapping[str, Settings]) -> dict[str, str]:
    """Return a unique state for each execution if a registry is configured.

    A cached verdict must not move an alias later, and a run with a killed promotion must be able to
    complete it.
    """
    settings = sections["registry"]
    named = isinstance(settings, RegistrySettings) and settings.name is not None
    return {"registry.promotion": uuid.uuid4().hex} if named else {}


class _Judge:
    """The gate, with the evidence that does not depend on the champion."""

    def __init__(self, exported: Exported, gate: GateSettings, model: str) -> None:
        self.exported = exported
        self._gate, self._model = gate, model
        self._exports = _readable(exported.summary, dict[str, ExportRecord]())
        self._analysis = _readable(exported.analysis, Analysis())

    def __call__(self, measured: Measurements) -> Verdict:
        """Return the verdict on measurements."""
        comparison = measured.comparison
        verdict = judge(
            measured.rows,
            self._gate,
            infrastructure=measured.infrastructure_check,
            verification=self._exports.get(CANDIDATE_VARIANT, ExportRecord()).verification,
            analysis=self._analysis.findings,
            chance=measured.chance,
            groups=measured.groups,
            comparison=comparison,
        )
        return verdict.model_copy(
            update={
                "model": self._model,
                "champion": comparison.digest if comparison is not None else "",
                "evaluation": measured.identity,
            }
        )


def _again(
    judged: _Judge,
    measured: Measurements,
    registry: Registry,
    files: RunFiles,
    engines: Engines,
    settings: EngineSettings,
    seed: int,
) -> Callable[[RegisteredVersion | None], Verdict]:
    """Return a function that judges the candidate against another champion."""

    def again(champion: RegisteredVersion | None) -> Verdict:
        built = engines.infos().get(CANDIDATE_VARIANT)
        comparison = compare_with_version(
            registry,
            champion,
            judged.exported.graph(CANDIDATE_VARIANT),
            files.dataset,
            settings=settings,
            backend=choose_backend(built.backend if built is not None else settings.backend),
            seed=seed,
        )
        update = {"comparison": comparison, "identity": uuid.uuid4().hex}
        return judged(measured.model_copy(update=update))

    return again


def _metrics(
    verdict: Verdict, measured: Measurements, outcome: PromotionOutcome | None
) -> dict[str, float]:
    metrics: dict[str, float] = {
        "promoted": float(verdict.promoted),
        "checks": float(len(verdict.reasons)),
        "checks_failed": float(len(verdict.failed)),
    }
    row, reference = measured.row(CANDIDATE), measured.row(REFERENCE)
    if row.value is not None:
        metrics[row.metric.name] = row.value
        if reference.value is not None:
            drop = row.metric.loss(row.value, reference.value)
            metrics[f"{row.metric.name}_drop"] = drop
    if (factor := speedup(row, measured.row(FP32_ENGINE))) is not None:
        metrics["speedup"] = factor
    if outcome is not None:
        metrics["registered_version"] = float(outcome.version)
    return metrics


def _readable(read: Callable[[], _T], otherwise: _T) -> _T:
    """Return the result of ``read``, or ``otherwise``: missing evidence only fails the gate."""
    try:
        return read()
    except StepError:
        return otherwise
