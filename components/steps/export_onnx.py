"""Step export_onnx: FP32, PTQ, QAT and optionally FP16 models to ONNX.

Each graph is verified, and that of the candidate analyzed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from qat_lib.engines import get_backend
from qatline.components.artifacts import Baseline, Dataset, Exported, FineTuned, Quantized
from qatline.components.artifacts.exported import ExportRecord, FindingRecord
from qatline.components.artifacts.models import ModelFolder
from qatline.components.artifacts.variants import CANDIDATE_VARIANT, Variant
from qatline.components.export.choice import choose_export
from qatline.components.settings import EngineSettings, ExportSettings
from qatline.components.support.events import Progress


def export_onnx_settings(sections: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that the result depends on.

    Of ``engine`` these are two.
    """
    from qatline.components.export.choice import engine_dependencies

    return {**sections, "engine": engine_dependencies(sections["engine"])}


def export_onnx_step(
    dataset: Path,
    baseline: Path,
    ptq: Path,
    qat: Path,
    out: Path,
    *,
    export: ExportSettings,
    engine: EngineSettings,
    progress: Progress,
) -> dict[str, float]:
    """Export the three models; stop at what an engine would get wrong.

    Args:
        dataset: directory of prepare_data; its test part is what ONNX Runtime and Keras are
            compared on.
        baseline: directory of the FP32 model.
        ptq: directory of the calibrated model.
        qat: directory of the fine-tuned model; its plan is the one that the graphs are verified
            against.
        out: existing empty directory; receives ``fp32.onnx``, ``ptq.onnx``, ``qat.onnx``,
            ``plan.json``, ``export.json``, and the fusion analysis of ``qat.onnx`` as
            ``analysis.json`` and ``analysis.html``; with an FP16 engine to come also ``fp16.onnx``,
            the baseline in float16.
        export: target, operator set, how weights are stored, and the precision of the rest.
        engine: of it only the backend, which the target follows, and whether FP16 is wanted.
        progress: told about each variant.

    Returns:
        For each variant its size in bytes, the seconds that the export took, the largest difference
        from Keras and the number of quantizers; of the analysis the number of INT8 layers and of
        fused Adds.

    Raises:
        VerificationError: a graph is not what its plan says, does not agree with Keras, or the
            analysis finds an error.
        ExportError: a model can't be exported.
        ConfigError: the target does not fit the engine's backend.
    """
    choice = choose_export(export, engine)
    export = export.model_copy(update={"target": choice.target})
    full, half = (export.model_copy(update={"float_precision": kind}) for kind in ("fp32", "fp16"))
    fp32, tuned, exported = Baseline(baseline), FineTuned(qat), Exported(out)
    jobs: dict[Variant, tuple[ModelFolder, ExportSettings]] = {
        Variant.FP32: (fp32, full),
        Variant.PTQ: (Quantized(ptq), export),
        Variant.QAT: (tuned, export),
    }
    if choice.fp16:
        jobs[Variant.FP16] = (fp32, half)
    summary: dict[str, ExportRecord] = {}
    metrics: dict[str, float] = {}
    tuned.copy_plan(exported)
    for index, (variant, (model, settings)) in enumerate(jobs.items()):
        progress.update("exporting", index, len(jobs))
        record = _export_variant(Dataset(dataset), model, exported.graph(variant), settings)
        summary[variant] = record
        metrics |= {f"{variant}_{name}": value for name, value in record.numbers().items()}
        for finding in record.verification or ():
            progress.warn(f"{variant}: {finding.code} {finding.node}: {finding.message}")
        exported.write_summary(summary)
    progress.update("exporting", len(jobs), len(jobs))
    if not get_backend(choice.target).supports("unsigned"):
        return metrics | _analyze(exported.graph(CANDIDATE_VARIANT), exported)
    # A graph for another backend is not legal in TensorRT and does not have to be: the same model
    # exported for TensorRT is analyzed.
    with tempfile.TemporaryDirectory(dir=out) as folder:
        path = Path(folder) / CANDIDATE_VARIANT.onnx
        # TensorRT has no INT4 weights: their integers are stored in 8 bits.
        weights = export.options().weights
        update = {"target": "tensorrt", "weights": "int8" if weights == "int4" else weights}
        signed = export.model_copy(update=update)
        _export_file(tuned, path, signed, signed=True)
        return metrics | _analyze(path, exported)


def _export_variant(
    dataset: Dataset, folder: ModelFolder, path: Path, export: ExportSettings
) -> ExportRecord:
    """Export one model and compare both on the test part."""
    from qatline.components.data.reader import load_split
    from qatline.components.export.parity import compare_with_model
    from qatline.components.training.framework import framework_of

    metadata: dict[str, Any] = {"classes": list(dataset.info().classes)}
    if (accuracy := folder.test_accuracy()) is not None:
        metadata["accuracy"] = accuracy
    model, report = _export_file(
        folder, path, export, preprocessing=dataset.preprocessing(), metadata=metadata
    )
    images, _ = load_split(dataset.path, "test", limit=export.parity_samples)

    def export_in_fp32(twin: Path) -> None:
        _export_file(folder, twin, export.model_copy(update={"float_precision": "fp32"}))

    options = export.options()
    in_half = options.float_precision == "fp16"
    parity = compare_with_model(
        framework_of(folder),
        model,
        path,
        images,
        export_in_fp32=export_in_fp32 if in_half else None,
    )
    return ExportRecord(
        bytes=report.bytes,
        seconds=report.seconds,
        conversion_seconds=report.conversion_seconds,
        opset=report.opset,
        quantizers=report.quantizers,
        nodes=report.nodes,
        target=options.target,
        float_precision=options.float_precision,
        verification=[FindingRecord(**finding.to_dict()) for finding in report.findings],
        parity=parity,
    )


def _export_file(
    folder: ModelFolder, path: Path, export: ExportSettings, *, signed: bool = False, **about: Any
) -> tuple[Any, Any]:
    """Export the model of a step's directory, verified against its plan.

    Return the model and the report.

    With ``signed``, unsigned quantizers become signed ones of the same range: other numbers, the
    same structure.
    """
    from qatline.components.training.framework import framework_of

    framework = framework_of(folder)
    model = framework.load(folder)
    report = framework.export_onnx(
        model, path, options=export.options(), signed=signed, plan=folder.plan(), **about
    )
    return model, report


def _analyze(path: Path, exported: Exported) -> dict[str, float]:
    """Predict TensorRT's fusions, write the analysis, and stop on its errors.

    Raises:
        VerificationError: TensorRT's parser would not interpret the graph as intended.
    """
    from qat_lib.analysis import analyze_onnx, fail_on, to_html
    from qat_lib.errors import VerificationError

    # Not where the file happens to lie now: that would make every export another one.
    fusion = replace(analyze_onnx(path), model=CANDIDATE_VARIANT.onnx)
    exported.write_analysis(fusion.to_json(), to_html(fusion))
    errors = fail_on(fusion.findings, "error")
    if errors:
        raise VerificationError(
            f"The analysis of {path.name} finds {len(errors)} errors. First: "
            + "; ".join(map(str, errors[:3]))
        )
    return {
        "int8_layers": fusion.int8_layers,
        "weighted_layers": len(fusion.layers),
        "fused_adds": fusion.fused_adds,
    }
