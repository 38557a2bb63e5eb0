"""Result of a run: the content of ``result.json`` and ``run --json``."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from qatline.components.artifacts.evaluation import Rows
from qatline.components.artifacts.promotion import PromotionOutcome, Reason
from qatline.components.artifacts.record import Record
from qatline.pipelines.run.record import TrackingRecord

NOTHING_NEW = "nothing new"
"""Verdict of a skipped run: an earlier one had the same data, code and settings."""


class FinishedStep(Record):
    """A finished step; ``status`` is ``executed`` or ``reused``."""

    name: str
    status: str = "executed"
    seconds: float | None = None


class GateResult(Record):
    """Decision of the gate; ``verdict`` is None for pipelines without a gate."""

    verdict: str | None = None
    reasons: Sequence[Reason] = ()


class RunResult(Record):
    """Result of a finished run.

    Attributes:
        rows: rows of the evaluation by name, in display order.
        speed: sentences on the INT8 engine's speed compared with FP32.
        registry: outcome of the promotion; None without a registry.
        nothing_new: reason of an early end; empty for a complete run.
        report: path of the report, if any.
        tracking: location in MLflow; None for an untracked run.
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
        """Verdict of the gate, or ``nothing new``; None for a pipeline without a gate."""
        return self.gate.verdict or (NOTHING_NEW if self.nothing_new else None)
