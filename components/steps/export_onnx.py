"""Step export_onnx: FP32, PTQ, QAT and optionally FP16 models to ONNX.

Each graph is verified, and that of the candidate is analyzed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod
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
from qatline.components.tasks import open_task

# Samples and bytes of a batch in the comparison: an eager call of Keras takes as long for few samples.
_BATCH, _BATCH_BYTES = 32, 4 << 20


def export_onnx_settings(sections: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that affect the result; of ``engine`` these are two."""
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
    """Export the three models; stop at errors that would affect an engine.

    Args:
        dataset: directory of prepare_data; ONNX Runtime and Keras are compared on its test part.
        baseline: directory of the FP32 model.
        ptq: directory of the calibrated model.
        qat: directory of the fine-tuned model; its plan is used to verify the graphs.
        out: existing empty directory; receives ``fp32.onnx``, ``ptq.onnx``, ``qat.onnx``,
            ``plan.json``, ``export.json``, and the fusion analysis of ``qat.onnx`` as
            ``analysis.json`` and ``analysis.html``; for a later FP16 engine also ``fp16.onnx``, the
            baseline in float16.
        export: target, operator set, storage of weights, and precision of unquantized parts.
        engine: only the backend, which determines the target, and the FP16 setting are used.
        progress: receives each variant.

    Returns:
        Size in bytes, export time in seconds, largest difference from Keras and number of
        quantizers for each variant; numbers of INT8 layers and fused Adds from the analysis.

    Raises:
        VerificationError: a graph deviates from its plan or from Keras, or the analysis finds an
            error.
        ExportError: a model cannot be exported.
        ConfigError: the target does not fit the engine's backend.
    """
    from qatline.components.training.framework import framework_of

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
    info = Dataset(dataset).info()
    decoding = open_task(info).decoding(probabilities=bool(fp32.info().probabilities))
    about = {"task": info.task, "classes": list(info.classes), "decoding": decoding}
    summary: dict[str, ExportRecord] = {}
    metrics: dict[str, float] = {}
    candidate: Any = None
    tuned.copy_plan(exported)
    for index, (variant, (folder, settings)) in enumerate(jobs.items()):
        progress.update("exporting", index, len(jobs))
        model, path = framework_of(folder).load(folder), exported.graph(variant)
        record = _export_variant(Dataset(dataset), folder, model, path, settings, about)
        if variant is CANDIDATE_VARIANT:
            candidate = model
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
    with tempfile.TemporaryDirectory(dir=out) as scratch:
        path = Path(scratch) / CANDIDATE_VARIANT.onnx
        # TensorRT has no INT4 weights: their integers are stored in 8 bits.
        weights = export.options().weights
        update = {"target": "tensorrt", "weights": "int8" if weights == "int4" else weights}
        signed = export.model_copy(update=update)
        _export_file(tuned, candidate, path, signed, signed=True)
        return metrics | _analyze(path, exported)


def _export_variant(
    dataset: Dataset,
    folder: ModelFolder,
    model: Any,
    path: Path,
    export: ExportSettings,
    about: Mapping[str, Any],
) -> ExportRecord:
    """Export one model and compare it with its graph on the test part."""
    from qatline.components.export.parity import compare_with_model
    from qatline.components.training.framework import framework_of

    metadata = dict(about)
    metric = open_task(dataset.info()).primary.name
    if (value := folder.test_value(metric)) is not None:
        metadata[metric] = value
    report = _export_file(
        folder, model, path, export, preprocessing=dataset.preprocessing(), metadata=metadata
    )

    def export_in_fp32(twin: Path) -> None:
        _export_file(folder, model, twin, export.model_copy(update={"float_precision": "fp32"}))

    options = export.options()
    in_half = options.float_precision == "fp16"
    parity = compare_with_model(
        framework_of(folder),
        model,
        path,
        _TestInputs(dataset.path, export),
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


class _TestInputs:
    """The first inputs of the test part as restartable batches, for samples of any size."""

    def __init__(self, dataset: Path, export: ExportSettings) -> None:
        self._dataset, self._limit = dataset, export.parity_samples
        sample = sum(4 * prod(each.shape) for each in Dataset(dataset).info().inputs.values())
        # A file with a fixed batch size runs whole batches only.
        self._size = export.options().batch_size or max(_BATCH, _BATCH_BYTES // sample)

    def __iter__(self) -> Iterator[Any]:
        from qatline.components.data.reader import numpy_batches

        return (x for x, _ in numpy_batches(self._dataset, "test", self._size, limit=self._limit))


def _export_file(
    folder: ModelFolder,
    model: Any,
    path: Path,
    export: ExportSettings,
    *,
    signed: bool = False,
    **about: Any,
) -> Any:
    """Export and verify the model of a step's directory; return the report.

    With ``signed``, unsigned quantizers of the model become signed with the same range: the values
    change, the structure does not.
    """
    from qatline.components.training.framework import framework_of

    options, plan = export.options(), folder.plan()
    return framework_of(folder).export_onnx(
        model, path, options=options, signed=signed, plan=plan, **about
    )


def _analyze(path: Path, exported: Exported) -> dict[str, float]:
    """Predict TensorRT's fusions, write the analysis, and stop on its errors.

    Raises:
        VerificationError: TensorRT's parser would not interpret the graph as intended.
    """
    from qat_lib.analysis import analyze_onnx, fail_on, to_html
    from qat_lib.errors import VerificationError

    # Replace the path of the temporary file: it would change the digest of every export.
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
