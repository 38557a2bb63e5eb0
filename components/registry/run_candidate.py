"""Candidate of a run: files, tags and description for the registry."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from qat_lib.engines.onnx_graph import read_summary
from qat_lib.errors import QatlineError
from qatline.components.artifacts import Baseline, Dataset, Exported
from qatline.components.artifacts.evaluation import Measurements
from qatline.components.artifacts.models import ModelInfo
from qatline.components.artifacts.promotion import PromotionOutcome, Verdict
from qatline.components.artifacts.variants import CANDIDATE, CANDIDATE_VARIANT
from qatline.components.registry.facts import ModelFacts, this_run
from qatline.components.registry.package import write_package
from qatline.components.registry.promotion import Candidate, PromotionOptions, submit_candidate
from qatline.components.registry.registry import RegisteredVersion, Registry
from qatline.components.store.fingerprints import file_digest

LEASE_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True)
class RunFiles:
    """Files and results of a run for the registry.

    Attributes:
        dataset, baseline, onnx: output directories of the steps.
        model: description of the FP32 model.
        measured: measurements of the evaluation.
        card: the model card in Markdown.
    """

    dataset: Path
    baseline: Path
    onnx: Path
    model: ModelInfo
    measured: Measurements
    card: str

    @property
    def graph(self) -> Path:
        """ONNX file of the candidate."""
        return Exported(self.onnx).graph(CANDIDATE_VARIANT)

    def facts(self) -> ModelFacts:
        """Return the properties recorded as tags."""
        return ModelFacts(
            row=self.measured.row(CANDIDATE),
            target=_target(self.graph),
            data=Dataset(self.dataset).info().fingerprint,
            samples=int(self.measured.samples or 0),
            framework=self.model.framework,
            model=self.model.name,
        )

    def write(self, folder: Path) -> None:
        """Write the registry's files into a new folder."""
        prepared, trained = Dataset(self.dataset), Baseline(self.baseline)
        kept = [trained.model_file]
        if trained.has(Baseline.RECIPE):
            kept.append(trained.file(Baseline.RECIPE))
        write_package(
            folder,
            graph=self.graph,
            preprocessing=prepared.preprocessing(),
            classes=prepared.info().classes,
            baseline=kept,
            card=self.card,
        )


def submit_run(
    registry: Registry,
    files: RunFiles,
    verdict: Verdict,
    *,
    judge_again: Callable[[RegisteredVersion | None], Verdict],
    lease: float = LEASE_SECONDS,
    warn: Callable[[str], None] = lambda _: None,
) -> PromotionOutcome:
    """Register a run's candidate and promote it if its verdict allows.

    Args:
        registry: the registered model.
        files: files of the run.
        verdict: verdict of the gate against the champion at evaluation time.
        judge_again: judges the candidate against the current champion.
        lease: duration of the lock's lease in seconds.
        warn: receives a message while another promotion holds the lock.

    Raises:
        TrackingError: the store fails.
    """
    facts = files.facts()
    with tempfile.TemporaryDirectory() as place:
        # Called for new candidates only: the package contains all files of the model.
        def folder() -> Path:
            files.write(Path(place) / "model")
            return Path(place) / "model"

        candidate = Candidate(
            digest=file_digest(files.graph),
            verdict=verdict,
            folder=folder,
            tags=facts.tags,
            describe=facts.describe,
            by=this_run(),
        )
        options = PromotionOptions(
            judge_again=judge_again,
            lease=lease,
            waiting=lambda holder: _tell(holder, registry, warn),
        )
        return submit_candidate(registry, candidate, options)


def _tell(holder: str, registry: Registry, warn: Callable[[str], None]) -> None:
    if holder:
        warn(f"waiting for the lock of {registry.name!r}, which {holder} holds")


def _target(graph: Path) -> str:
    """Return the export backend of a graph; empty if unknown."""
    try:
        return str(read_summary(graph).metadata.get("target") or "")
    except QatlineError:
        return ""
