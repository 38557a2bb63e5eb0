"""A run's result: the content of ``result.json`` and ``run --json``."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from qatline.components.artifacts.evaluation import Rows
from qatline.components.artifacts.promotion import PromotionOutcome, Reason
from qatline.components.artifacts.record import Record
from qatline.pipelines.run.record import TrackingRecord

NOTHING_NEW = "nothing new"
"""Verdict of a run that ended early, as an earlier one had the same data, code and settings."""


class FinishedStep(Record):
    """A step that ended; ``status`` is ``executed`` or ``reused``."""

    name: str
    status: str = "executed"
    seconds: float | None = None


class GateResult(Record):
    """The gate's decision; without a verdict where the pipeline has no gate."""

    verdict: str | None = None
    reasons: Sequence[Reason] = ()


class RunResult(Record):
    """What a finished run achieved.

    Attributes:
        rows: the rows of the evaluation by name, in the order in which they are shown.
        speed: sentences on the INT8 engine's speed against FP32.
        registry: what became of the candidate there; None where nothing is registered.
        nothing_new: why the run ended early; empty for a whole run.
        report: path of the report, where there is one.
        tracking: None for a run that is not tracked.
    """

    run_id: str
    run_dir: str
    steps: Sequence[FinishedStep] = ()
    rows: Rows = Field(default_factory=dict, alias="results")
    speed: Sequence[str] = ()
    gate: GateResult = GateResult()
    registry: PromotionOutcome | None = None
    nothing_new: str = ""
    report: str | None = None
    tracking: TrackingRecord | None = None

    @property
    def verdict(self) -> str | None:
        """The gate's verdict, or ``nothing new``; None for a pipeline without a gate."""
        return self.gate.verdict or (NOTHING_NEW if self.nothing_new else None)
