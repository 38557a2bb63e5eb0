"""Step promote: the gate's verdict on the QAT engine, and the report of the run."""

# No "from __future__ import annotations" here: KFP reads the annotations of a component as objects.

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kfp import dsl

from components.evaluation.rows import CANDIDATE, FP32_ENGINE, REFERENCE
from components.gate import Verdict, judge, speedup
from components.report import ReportFolders, render_report
from components.runtime.events import Progress
from components.runtime.images import ENGINE_IMAGE
from components.runtime.model_names import registered_name
from components.settings import GateSettings
from components.variants import CANDIDATE_VARIANT
from qat_lib.errors import StepError


def promote(
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
        ``accuracy``, ``accuracy_drop`` (FP32 Keras minus the engine) and ``speedup``.

    Raises:
        StepError: ``evaluation.json`` is missing or unreadable: without it there is nothing to
            judge.
    """
    progress.update("judging", 0, 2)
    measured = _mapping(_read(evaluation / "evaluation.json", required=True))
    results = {name: _mapping(row) for name, row in _mapping(measured.get("results")).items()}
    verdict = judge(
        results,
        gate,
        infrastructure=_mapping(measured.get("infrastructure_check")) or None,
        verification=_findings(
            _mapping(_read(onnx / "export.json")).get(CANDIDATE_VARIANT), "verification"
        ),
        analysis=_findings(_read(onnx / "analysis.json"), "findings"),
    )
    _write(
        out / "verdict.json",
        json.dumps({"model": _model_name(baseline), **verdict.to_dict()}, indent=1) + "\n",
    )
    if verdict.promoted:
        shutil.copyfile(onnx / CANDIDATE_VARIANT.onnx, out / "champion.onnx")
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
    _write(
        out / "report.html", render_report(folders, verdict=verdict.to_dict(), gate=gate, seed=seed)
    )
    progress.update("reporting", 2, 2)
    return _metrics(verdict, results)


def _model_name(baseline: Path) -> str:
    """Return the name under which a champion is registered: the model's, as far as the registry takes it."""
    return registered_name(str(_mapping(_read(baseline / "model.json")).get("name") or "model"))


def _metrics(verdict: Verdict, results: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    failed = sum(not reason.passed for reason in verdict.reasons)
    metrics: dict[str, float] = {
        "promoted": float(verdict.promoted),
        "checks": float(len(verdict.reasons)),
        "checks_failed": float(failed),
    }
    row, reference = results.get(CANDIDATE, {}), results.get(REFERENCE, {})
    if isinstance(row.get("accuracy"), float):
        metrics["accuracy"] = row["accuracy"]
        if isinstance(reference.get("accuracy"), float):
            metrics["accuracy_drop"] = reference["accuracy"] - row["accuracy"]
    if (factor := speedup(row, results.get(FP32_ENGINE, {}))) is not None:
        metrics["speedup"] = factor
    return metrics


def _read(path: Path, *, required: bool = False) -> Any:
    """Return a JSON file's content; None if it can't be read and need not be there: the gate then fails closed."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        if required:
            raise StepError(
                f"Expected the measurements in {path}, but it can't be read ({error}). Run evaluate again."
            ) from error
        return None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _findings(value: Any, key: str) -> Sequence[Mapping[str, Any]] | None:
    found = _mapping(value).get(key)
    return [_mapping(item) for item in found] if isinstance(found, list) else None


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


@dsl.component(base_image=ENGINE_IMAGE, install_kfp_package=False)
def promote_component(
    dataset: dsl.Input[dsl.Artifact],
    baseline: dsl.Input[dsl.Artifact],
    ptq: dsl.Input[dsl.Artifact],
    qat: dsl.Input[dsl.Artifact],
    onnx: dsl.Input[dsl.Artifact],
    engines: dsl.Input[dsl.Artifact],
    evaluation: dsl.Input[dsl.Artifact],
    promotion: dsl.Output[dsl.Artifact],
    report: dsl.Output[dsl.HTML],
    metrics: dsl.Output[dsl.Metrics],
    gate: dict[str, Any] = {},  # noqa: B006  # KFP takes the default from the signature; nothing changes it
    seed: int = 0,
) -> None:
    """Judge the QAT engine and write the report."""
    import shutil

    from components.runtime.step import run_component

    inputs = {"dataset": dataset.path, "baseline": baseline.path, "ptq": ptq.path, "qat": qat.path}
    inputs |= {"onnx": onnx.path, "engines": engines.path, "evaluation": evaluation.path}
    run_component(
        "promote",
        settings={"gate": gate},
        seed=seed,
        inputs=inputs,
        output=promotion.path,
        metrics_artifact=metrics,
    )
    shutil.copyfile(f"{promotion.path}/report.html", report.path)
