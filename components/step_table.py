"""The table of the pipeline's steps, in order.

A step is a module ``components/<name>.py`` with a function ``<name>_step`` and an entry of
``STEPS``. All else is derived: the function's signature says which artifacts of earlier steps and
which sections of the config the step reads, and from it ``qatline.pipelines.kfp_components`` makes the
component for Kubeflow. A function ``<name>_settings`` beside it may reduce the sections to what the
result depends on, and ``<name>_state`` may say what else it depends on, such as the champion.
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
from qatline.components.artifacts.rows import CANDIDATE
from qatline.components.artifacts.variants import CANDIDATE_VARIANT


@dataclass(frozen=True, kw_only=True)
class TrackedOutputs:
    """Which files of a step's output directory are recorded, and as what.

    Each is a glob; a missing file is no error.

    ``artifacts`` are stored as they are. ``history`` is a JSON list of epochs that becomes curves.
    ``onnx`` are models with a signature. ``dataset`` is the description of the data. ``tags`` maps a glob of JSON
    objects to the keys in them that become tags, prefixed with the file's name; a name stands for
    all below it.

    The run of the whole pipeline gets the curves, the description of the data, and what follows:
    ``rows`` are measurements whose rows become metrics (of the step, too), ``verdict`` is the
    verdict, and ``summary`` are files.
    """

    artifacts: tuple[str, ...] = ()
    history: tuple[str, ...] = ()
    onnx: tuple[str, ...] = ()
    champion: tuple[str, ...] = ()
    dataset: tuple[str, ...] = ()
    tags: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    rows: tuple[str, ...] = ()
    verdict: tuple[str, ...] = ()
    summary: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step of the pipeline.

    Attributes:
        name: name of its module in ``components/steps/``, and of its function ``<name>_step``.
        artifact: name of its output directory, which is also that of the inputs that read it.
        tracked: what the tracking server gets of its output.
        kind: type of the artifact in Kubeflow: ``Artifact``, ``Dataset`` or ``Model``.
        image: image that it runs in: ``train``, or ``engine``, which has no TensorFlow.
        page: file of its output that Kubeflow shows as a page; empty for none.
        confusion: row of the measurements whose confusion matrix Kubeflow shows; empty for none.
        distributed: whether several workers can run it together; on a cluster as a TrainJob.
        machine_bound: whether its output depends on the processor or the GPU: no other machine may
            reuse it.
        help: what a user should know who gives the step's pod resources of its own.
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
        help=(
            "With an accelerator, engine.backend=auto means TensorRT; evaluate needs the same one."
        ),
        tracked=TrackedOutputs(
            artifacts=(Engines.ENGINES, Engines.MANIFESTS, Engines.LAYERS, Engines.SUMMARY),
            # The target of an engine: what it may run on, and what it turned out to be.
            tags={Engines.MANIFESTS: Engines.MANIFEST_TAGS},
        ),
    ),
    Step(
        name="evaluate",
        artifact="evaluation",
        image="engine",
        confusion=CANDIDATE,
        machine_bound=True,
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
            artifacts=(Promotion.VERDICT, Promotion.REPORT, Promotion.OUTCOME),
            verdict=(Promotion.VERDICT,),
            summary=(Promotion.REPORT,),
        ),
    ),
)

STEP_BY_NAME: Mapping[str, Step] = {step.name: step for step in STEPS}
