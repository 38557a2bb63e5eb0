"""Step build_engine: build one engine per exported ONNX variant.

Each engine is loaded again and compared with its ONNX graph.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from qat_lib.engines import BuildSpec, EngineArtifact, choose_backend, layers_path
from qat_lib.engines import build_engine as build
from qat_lib.engines.backend import get_backend
from qat_lib.engines.check import check_engine
from qat_lib.engines.onnx_graph import read_summary
from qat_lib.engines.spec import BACKENDS
from qat_lib.errors import EngineBuildError, QatlineError
from qat_lib.options import Backend, EnginePrecision
from qatline.components.artifacts import Dataset, Engines, Exported
from qatline.components.artifacts.engines import BuildSummary, EngineBuild
from qatline.components.artifacts.variants import CANDIDATE_VARIANT, HALF, REQUIRED, Variant
from qatline.components.data.reader import numpy_batches
from qatline.components.settings import EngineSettings
from qatline.components.support.events import Progress

# Number of calibration samples for the comparison of engines with their graphs.
_COMPARED = 64


def build_engine_step(
    onnx: Path,
    out: Path,
    *,
    engine: EngineSettings,
    seed: int,
    progress: Progress,
    dataset: Path | None = None,
) -> dict[str, float]:
    """Build each variant's engine; write it with manifest, layers and summary.

    Args:
        onnx: directory of export_onnx.
        out: existing empty directory; receives ``<variant>.engine`` with its manifest and layers,
            and ``build.json``.
        engine: settings of the build.
        seed: seed of the random input for the comparison of each engine with ONNX Runtime.
        progress: receives each variant.
        dataset: directory of prepare_data; its preprocessing and class names are stored in the
            manifests.

    Returns:
        Size in bytes, build time in seconds and number of weighted layers in INT8 for each variant.

    Raises:
        EngineError: a variant is missing, cannot be built, or its outputs differ from those of its
            ONNX graph. Failures of optional 16-bit engines are warnings.
    """
    exported, engines = Exported(onnx), Engines(out)
    if missing := exported.missing([variant.onnx for variant in REQUIRED]):
        raise EngineBuildError(
            f"{exported.path} holds no {', '.join(missing)}. Run {exported.STEP} again."
        )
    backend = _backend(engine, exported, progress)
    spec = build_spec(engine, dataset, backend=backend)
    fallback = get_backend(backend).fallback if engine.backend == "auto" else None
    try:
        builds = _build_all(exported, engines, spec, engine=engine, seed=seed, progress=progress)
        if fallback is not None and dataset is not None:
            _compare_on_data(exported, engines, builds, dataset, seed=seed)
    except EngineBuildError as error:
        if fallback is None:
            raise
        # Rebuild all engines: FP32 and INT8 must remain comparable.
        progress.warn(f"{error} {get_backend(fallback).title} builds all engines instead.")
        spec = replace(spec, backend=fallback)
        builds = _build_all(exported, engines, spec, engine=engine, seed=seed, progress=progress)
    engines.write_summary(BuildSummary(backend=spec.backend, variants=builds))
    metrics: dict[str, float] = {}
    for variant, built in builds.items():
        metrics |= {f"{variant}_{name}": value for name, value in built.numbers().items()}
    return metrics


def _build_all(
    exported: Exported,
    engines: Engines,
    spec: BuildSpec,
    *,
    engine: EngineSettings,
    seed: int,
    progress: Progress,
) -> dict[str, EngineBuild]:
    """Build each variant's engine with one backend.

    Raises:
        EngineBuildError: a required engine cannot be built, or its outputs are wrong.
    """
    jobs = build_jobs(exported, spec, engine.fp16)
    builds: dict[str, EngineBuild] = {}
    for index, (variant, (file, variant_spec)) in enumerate(jobs.items()):
        progress.update("building", index, len(jobs))
        try:
            artifact = build(
                file,
                variant_spec,
                output=engines.engine(variant),
                seed=seed,
                on_progress=lambda phase, current, total: progress.update(phase, current, total),
            )
        except EngineBuildError as error:
            # 16-bit engines serve the comparison only: a failure is not fatal.
            if variant not in HALF or (variant is Variant.FP16 and engine.fp16 == "always"):
                raise
            progress.warn(f"{variant}: no engine, so INT8 is not compared with it: {error}")
            continue
        for warning in artifact.warnings:
            progress.warn(f"{variant}: {warning}")
        if variant is Variant.FP16:
            warn_of_float(artifact, progress)
        builds[variant] = _record(artifact)
        if artifact.manifest.quantized:
            prediction = {"prediction": _prediction(artifact, progress)}
            builds[variant] = builds[variant].model_copy(update=prediction)
    progress.update("building", len(jobs), len(jobs))
    return builds


def _compare_on_data(
    exported: Exported, engines: Engines, builds: Iterable[str], dataset: Path, *, seed: int
) -> None:
    """Compare engines with their graphs on data, as in the later evaluation.

    The random requests of the build can miss faults that occur with real data.

    Raises:
        EngineBuildError: an engine's outputs differ from those of its graph.
    """
    inputs, _ = next(iter(numpy_batches(dataset, "calibration", _COMPARED)))
    for variant in map(Variant, builds):
        check = check_engine(
            engines.engine(variant),
            exported.reference(variant),
            requests=1,
            seed=seed,
            inputs=inputs,
        )
        if not check.passed:
            raise EngineBuildError(f"{variant}: {check.message}")


def _backend(engine: EngineSettings, exported: Exported, progress: Progress) -> Backend:
    """Return the backend to build with; ``auto`` prefers the target of the export if available."""
    graph = exported.graph(CANDIDATE_VARIANT)
    if engine.backend != "auto" or not graph.is_file():
        return choose_backend(engine.backend)
    best, target = choose_backend("auto"), read_summary(graph).metadata.get("target")
    if target in (None, best) or target not in BACKENDS:
        return best
    if not get_backend(target).supports("unsigned"):  # every backend supports signed graphs
        return best
    progress.warn(
        f"The graphs were exported for {target}, so {target} builds the engines, although {best} "
        f"works here too. For {best} set engine.backend={best} and run export_onnx again."
    )
    return choose_backend(target)


def build_jobs(
    exported: Exported, spec: BuildSpec, fp16: str
) -> dict[Variant, tuple[Path, BuildSpec]]:
    """Return ONNX file and spec of each engine to build.

    These are the three variants, and FP16 and BF16 if the backend supports them: the fastest float
    engine is the competitor of INT8.

    If the backend selects the precision, the FP32 graph is used; otherwise an FP16 graph sets it.
    """
    jobs = {variant: (exported.graph(variant), spec) for variant in REQUIRED}
    own_graph = exported.graph(Variant.FP16)
    if fp16 == "never":
        return jobs
    # These backends choose the float precision at the build, from the FP32 graph.
    precisions = () if spec.backend == "auto" else get_backend(spec.backend).float_precisions()
    for variant in HALF:
        if variant in precisions:
            half = replace(spec, float_precision=cast(EnginePrecision, variant.value))
            jobs[variant] = (exported.graph(Variant.FP32), half)
    if Variant.FP16 in jobs:
        return jobs
    if own_graph.is_file():
        jobs[Variant.FP16] = (own_graph, spec)
    elif fp16 == "always":
        raise EngineBuildError(
            f"engine.fp16=always needs {own_graph}. Run export_onnx again with it."
        )
    return jobs


def warn_of_float(artifact: EngineArtifact, progress: Progress) -> None:
    """Warn if an FP16 engine computes in FP32, as on CPUs without FP16 instructions."""
    weighted = [layer for layer in artifact.layers if layer.weighted]
    if weighted and not any(layer.precision == "fp16" for layer in weighted):
        computed = ", ".join(sorted({layer.precision for layer in weighted}))
        progress.warn(
            f"fp16: {artifact.manifest.backend} computes the FP16 graph in {computed} on this "
            "machine."
        )


def build_spec(
    engine: EngineSettings, dataset: Path | None = None, *, backend: Backend | None = None
) -> BuildSpec:
    """Return the build spec for batches of 1 to ``engine.batch_size``."""
    preprocessing: dict[str, Any] | None = None
    classes: tuple[str, ...] = ()
    if dataset is not None:
        prepared = Dataset(dataset)
        preprocessing, classes = prepared.preprocessing().to_dict(), prepared.info().classes
    return BuildSpec(
        backend=backend or choose_backend(engine.backend),
        max_batch_size=engine.batch_size,
        threads=engine.threads,
        workspace_mib=engine.workspace_mib,
        optimization_level=engine.optimization_level,
        preprocessing=preprocessing,
        classes=classes,
    )


def _prediction(artifact: EngineArtifact, progress: Progress) -> dict[str, Any] | None:
    """Compare the engine's layers with the predicted fusions, and score the prediction."""
    from qat_lib.analysis import analyze_onnx
    from qat_lib.analysis.comparison import compare

    try:
        report = analyze_onnx(
            Path(artifact.manifest.source["path"]), target=cast(Backend, artifact.manifest.backend)
        )
        return dict(compare(report, layers_path(artifact.path)).to_dict())
    except QatlineError as error:  # not fatal: the engine itself is built and checked
        progress.warn(
            f"{artifact.path.name}: the predicted fusions can't be compared with the engine: "
            f"{error}"
        )
        return None


def _record(artifact: EngineArtifact) -> EngineBuild:
    manifest, weighted = artifact.manifest, [layer for layer in artifact.layers if layer.weighted]
    return EngineBuild(
        bytes=manifest.bytes,
        build_seconds=manifest.build_seconds,
        int8_layers=manifest.precision.int8_layers,
        weighted_layers=manifest.precision.weighted_layers,
        backend_version=manifest.backend_version,
        device=dict(manifest.device),
        digest=manifest.digest,
        layers=dict(manifest.precision.layers),
        float_weighted_layers=[layer.name for layer in weighted if layer.precision != "int8"],
        warnings=list(artifact.warnings),
    )
