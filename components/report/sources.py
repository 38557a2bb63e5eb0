"""Reader of the steps' directories for the report.

Interrupted runs, older runs and other backends lack some files. The report then contains a sentence
about them; it never fails.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from qat_lib.core.plan import QuantizationPlan
from qat_lib.errors import QatlineError
from qatline.components.artifacts import Baseline, Dataset, Engines, Evaluation, Exported
from qatline.components.artifacts.engines import EngineInfo
from qatline.components.artifacts.evaluation import Measurements
from qatline.components.artifacts.exported import Analysis, ExportRecord
from qatline.components.artifacts.folder import StepFolder
from qatline.components.artifacts.models import (
    Epoch,
    FineTuned,
    LayerCosts,
    ModelInfo,
    Quantized,
    QuantizerRange,
)
from qatline.components.artifacts.variants import CANDIDATE_VARIANT
from qatline.components.step_table import STEPS
from qatline.components.store.manifest import MANIFEST_NAME, Manifest, read_step_manifest

if TYPE_CHECKING:
    from qat_lib.engines.values import EngineLayer
    from qat_lib.preprocessing import AnyPreprocessing
    from qatline.components.artifacts.data_info import DatasetInfo

_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class ReportFolders:
    """Output directories of the steps before ``promote``."""

    dataset: Path
    baseline: Path
    ptq: Path
    qat: Path
    onnx: Path
    engines: Path
    evaluation: Path

    def items(self) -> list[tuple[str, Path]]:
        """Return (step's name, directory) in the order of the pipeline."""
        return [
            (step.name, getattr(self, step.artifact))
            for step in STEPS
            if hasattr(self, step.artifact)
        ]


@dataclass(frozen=True, kw_only=True)
class RunData:
    """Outputs of the steps; missing or unreadable files have defaults.

    Args:
        layers: layers of the candidate's engine.
        steps: manifest of each step by name.
        notes: one sentence for each unreadable file.
    """

    evaluation: Evaluation
    exported: Exported
    dataset: DatasetInfo | None
    preprocessing: AnyPreprocessing | None
    model: ModelInfo
    baseline_history: Sequence[Epoch]
    qat_history: Sequence[Epoch]
    plan: QuantizationPlan
    costs: LayerCosts
    ptq_ranges: Mapping[str, QuantizerRange]
    qat_ranges: Mapping[str, QuantizerRange]
    export: Mapping[str, ExportRecord]
    analysis: Analysis
    engines: Mapping[str, EngineInfo]
    layers: Sequence[EngineLayer]
    measurements: Measurements
    steps: Mapping[str, Manifest]
    notes: Sequence[str] = ()

    @property
    def classes(self) -> Sequence[str]:
        """Class names in label order."""
        return () if self.dataset is None else self.dataset.classes


def read_run(folders: ReportFolders) -> RunData:
    """Read all files of the report."""
    reader = _Reader()
    read = reader.read
    dataset, baseline = Dataset(folders.dataset), Baseline(folders.baseline)
    ptq, qat = Quantized(folders.ptq), FineTuned(folders.qat)
    exported, engines = Exported(folders.onnx), Engines(folders.engines)
    evaluation = Evaluation(folders.evaluation)
    layers = partial(engines.layers, CANDIDATE_VARIANT)
    no_epochs, no_ranges = list[Epoch](), dict[str, QuantizerRange]()
    no_exports = dict[str, ExportRecord]()
    return RunData(
        evaluation=evaluation,
        exported=exported,
        dataset=read("the data", dataset, dataset.INFO, dataset.info, None),
        preprocessing=read(
            "the preprocessing", dataset, dataset.PREPROCESSING, dataset.preprocessing, None
        ),
        model=read("the model", baseline, baseline.INFO, baseline.info, ModelInfo()),
        baseline_history=read(
            "the training", baseline, baseline.HISTORY, baseline.history, no_epochs
        ),
        qat_history=read("the fine-tuning", qat, qat.HISTORY, qat.history, no_epochs),
        plan=_plan(reader, exported, qat, ptq),
        costs=read("the layers' costs", ptq, ptq.COSTS, ptq.costs, LayerCosts()),
        ptq_ranges=read("the ranges", ptq, ptq.RANGES, ptq.ranges, no_ranges),
        qat_ranges=read("the ranges", qat, qat.RANGES, qat.ranges, no_ranges),
        export=read("the exports", exported, exported.SUMMARY, exported.summary, no_exports),
        analysis=read("the analysis", exported, exported.ANALYSIS, exported.analysis, Analysis()),
        engines=read("the engines", engines, ".", engines.infos, dict[str, EngineInfo]()),
        layers=read("the engine's layers", engines, ".", layers, list["EngineLayer"]()),
        measurements=read(
            "the measurements",
            evaluation,
            evaluation.MEASUREMENTS,
            evaluation.measurements,
            Measurements(),
        ),
        steps=_manifests(reader, folders),
        notes=tuple(reader.notes),
    )


def _plan(reader: _Reader, exported: Exported, qat: FineTuned, ptq: Quantized) -> QuantizationPlan:
    """Return the latest readable plan of the steps."""
    for folder in (exported, qat, ptq):
        found = reader.read("the plan", folder, folder.PLAN, folder.plan, None)
        if found is not None:
            return found
    return QuantizationPlan(model="", mode="", quantizers=(), skipped=())


def _manifests(reader: _Reader, folders: ReportFolders) -> dict[str, Manifest]:
    found = {}
    for name, path in folders.items():
        read = partial(read_step_manifest, path)
        manifest = reader.read(f"the step {name}", StepFolder(path), MANIFEST_NAME, read, None)
        if manifest is not None:
            found[name] = manifest
    return found


class _Reader:
    """Reads the existing files and collects notes on unreadable ones."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def read(
        self, what: str, folder: StepFolder, name: str, read: Callable[[], _T], otherwise: _T
    ) -> _T:
        if not folder.file(name).exists():
            return otherwise
        try:
            return read()
        except QatlineError as error:
            # The report may be shared: omit the location of the run.
            reason = str(error).replace(f"{folder.path}/", f"{folder.path.name}/")
            self.notes.append(f"{what} can't be shown: {reason}")
            return otherwise
