"""Table of the pipeline's steps, in order.

A step is a module ``components/steps/<name>.py`` with a function ``<name>_step`` and an entry in
``STEPS``. Everything else is derived: the function's signature declares the input artifacts and the
sections of the config, and ``qatline.pipelines.kfp_components`` builds the Kubeflow component from
it. Two further functions are optional: ``<name>_settings`` reduces the sections to the values that
affect the result, and ``<name>_state`` returns further dependencies, such as the champion.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from qatline.components.artifacts import (
    Baseline,
    Dataset,
    Engines,
    Evaluation,
    Exported,
    FineTuned,
    Promotion,
    Quantized,
)
from qatline.components.artifacts.variants import CANDIDATE, CANDIDATE_VARIANT


@dataclass(frozen=True, kw_only=True)
class TrackedOutputs:
    """Globs of the files in a step's output directory that the tracking server records.

    Missing files are ignored.

    Attributes:
        artifacts: files stored unchanged.
        history: JSON lists of epochs, recorded as curves.
        onnx: models stored with a signature.
        dataset: description of the data.
        tags: JSON objects by glob, with the keys recorded as tags. Each tag is prefixed with the
            file name; the name of an object selects all values below it.
        rows: measurements whose rows become metrics, of the step and of the pipeline run.
        verdict: verdict of the gate, recorded with the pipeline run.
        summary: files recorded with the pipeline run, in addition to the curves and the
            description of the data.
    """

    artifacts: tuple[str, ...] = ()
    history: tuple[str, ...] = ()
    onnx: tuple[str, ...] = ()
    dataset: tuple[str, ...] = ()
    tags: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    rows: tuple[str, ...] = ()
    verdict: tuple[str, ...] = ()
    summary: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step of the pipeline.

    Attributes:
        name: name of the module in ``components/steps/`` and prefix of its function
            ``<name>_step``.
        artifact: name of the output directory, and of the input parameter of later steps.
        tracked: outputs recorded by the tracking server.
        kind: Kubeflow type of the artifact: ``Artifact``, ``Dataset`` or ``Model``.
        image: container image: ``train``, or ``engine`` without TensorFlow.
        page: output file that Kubeflow displays as a page; empty for none.
        confusion: row of the measurements whose confusion matrix Kubeflow displays; empty for none.
        distributed: whether several workers can share the step; on a cluster it runs as a TrainJob.
        machine_bound: whether the output depends on the CPU or GPU; other machines never reuse it.
        timed: whether the step measures durations; it then runs alone among the runs of a sweep.
        help: note for users that set pod resources for this step.
    """

    name: str
    artifact: str
    tracked: TrackedOutputs = field(default_factory=TrackedOutputs)
    kind: Literal["Artifact", "Dataset", "Model"] = "Artifact"
    image: Literal["train", "engine"] = "train"
    page: str = ""
    confusion: str = ""
    distributed: bool = False
    machine_bound: bool = False
    timed: bool = False
    help: str = ""


STEPS = (
    Step(
        name="prepare_data",
        artifact="dataset",
        kind="Dataset",
        tracked=TrackedOutputs(
            artifacts=(Dataset.INFO, Dataset.PREPROCESSING), dataset=(Dataset.INFO,)
        ),
    ),
    Step(
        name="train_baseline",
        artifact="baseline",
        kind="Model",
        distributed=True,
        tracked=TrackedOutputs(
            artifacts=(Baseline.METRICS, Baseline.HISTORY, Baseline.INFO),
            history=(Baseline.HISTORY,),
            tags={Baseline.INFO: Baseline.INFO_TAGS},
        ),
    ),
    Step(
        name="quantize_model",
        artifact="ptq",
        kind="Model",
        tracked=TrackedOutputs(
            artifacts=(Quantized.PLAN, Quantized.SPEC, Quantized.RANGES, Quantized.METRICS),
            summary=(Quantized.PLAN, Quantized.SPEC),
        ),
    ),
    Step(
        name="finetune_qat",
        artifact="qat",
        kind="Model",
        distributed=True,
        tracked=TrackedOutputs(
            artifacts=(
                *(FineTuned.PLAN, FineTuned.RANGES, FineTuned.HISTORY, FineTuned.METRICS),
                *(FineTuned.CONTROL_HISTORY, FineTuned.CONTROL_METRICS),
            ),
            history=(FineTuned.HISTORY,),
        ),
    ),
    Step(
        name="export_onnx",
        artifact="onnx",
        kind="Model",
        tracked=TrackedOutputs(
            artifacts=(
                *(Exported.PLAN, Exported.SUMMARY),
                *(Exported.ANALYSIS, Exported.ANALYSIS_PAGE),
            ),
            onnx=(CANDIDATE_VARIANT.onnx,),
        ),
    ),
    Step(
        name="build_engine",
        artifact="engines",
        kind="Model",
        image="engine",
        machine_bound=True,
        timed=True,
        help=(
            "With an accelerator, engine.backend=auto means TensorRT; evaluate needs the same one."
        ),
        tracked=TrackedOutputs(
            artifacts=(Engines.ENGINES, Engines.MANIFESTS, Engines.LAYERS, Engines.SUMMARY),
            # The target of an engine: the permitted devices, and the one it was built for.
            tags={Engines.MANIFESTS: Engines.MANIFEST_TAGS},
        ),
    ),
    Step(
        name="evaluate",
        artifact="evaluation",
        image="engine",
        confusion=CANDIDATE,
        machine_bound=True,
        timed=True,
        tracked=TrackedOutputs(
            artifacts=(Evaluation.MEASUREMENTS, Evaluation.PICTURES),
            rows=(Evaluation.MEASUREMENTS,),
        ),
    ),
    Step(
        name="promote",
        artifact="promotion",
        image="engine",
        page=Promotion.REPORT,
        tracked=TrackedOutputs(
            artifacts=(
                Promotion.VERDICT,
                Promotion.REPORT,
                Promotion.OUTCOME,
                Promotion.CARD,
            ),
            verdict=(Promotion.VERDICT,),
            summary=(Promotion.REPORT,),
        ),
    ),
)

STEP_BY_NAME: Mapping[str, Step] = {step.name: step for step in STEPS}
