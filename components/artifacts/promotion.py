"""Output of promote: the verdict with advice, the report and, if it passed, the champion."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar, Literal

from qatline.components.artifacts.folder import StepFolder
from qatline.components.artifacts.record import Record


class Reason(Record):
    """One check of the gate.

    Attributes:
        check: stable name, such as ``quality_drop``.
        passed: whether the engine passed it.
        expected: the bound as text.
        received: the measurement as text.
        message: one readable sentence.
    """

    check: str
    passed: bool
    expected: str = ""
    received: str = ""
    message: str = ""


class Verdict(Record):
    """The gate's decision, with one reason per check in a fixed order.

    Attributes:
        model: name of the registered model, or of the model itself without a registry.
        champion: SHA-256 of the compared champion's ONNX file; empty without a champion.
        evaluation: identity of the judged measurements.
    """

    model: str = ""
    verdict: Literal["promote", "reject"]
    reasons: tuple[Reason, ...] = ()
    champion: str = ""
    evaluation: str = ""

    @property
    def promoted(self) -> bool:
        """Whether every check passed."""
        return self.verdict == "promote"

    @property
    def failed(self) -> tuple[str, ...]:
        """Names of the failed checks."""
        return tuple(reason.check for reason in self.reasons if not reason.passed)

    @property
    def summary(self) -> str:
        """Short text of the verdict."""
        failed = ", ".join(self.failed)
        return f"failed {failed}" if failed else f"passed all {len(self.reasons)} checks"


class PromotionOutcome(Record):
    """Outcome of a promotion for a candidate.

    Attributes:
        action: ``promoted``, ``rejected``, or ``unchanged`` if this candidate was judged before or
            is already the champion.
        version: version of the candidate.
        champion: version of the current champion; None for none.
        previous: version of the champion before.
        message: one readable sentence.
        verdict: the final verdict; it differs from the first one if the champion changed meanwhile.
    """

    action: Literal["promoted", "rejected", "unchanged"]
    version: int
    champion: int | None = None
    previous: int | None = None
    message: str = ""
    verdict: Verdict


class Promotion(StepFolder):
    """The verdict, the report and the model card of a run."""

    STEP: ClassVar[str] = "promote"
    VERDICT: ClassVar[str] = "verdict.json"
    REPORT: ClassVar[str] = "report.html"
    CHAMPION: ClassVar[str] = "champion.onnx"
    OUTCOME: ClassVar[str] = "registry.json"
    CARD: ClassVar[str] = "MODEL_CARD.md"
    PACKAGE: ClassVar[str] = "package"

    @property
    def report_file(self) -> Path:
        """Path of the report."""
        return self.file(self.REPORT)

    @property
    def champion_file(self) -> Path:
        """Path of the engine's source graph, present after a promotion."""
        return self.file(self.CHAMPION)

    def verdict(self) -> Verdict:
        """Return the verdict."""
        return self.read(self.VERDICT, Verdict)

    def write_verdict(self, verdict: Verdict) -> None:
        """Write the verdict."""
        self.write(self.VERDICT, verdict.to_dict())

    def outcome(self) -> PromotionOutcome | None:
        """Return the outcome of the promotion; None without a registry."""
        return self.read(self.OUTCOME, PromotionOutcome) if self.has(self.OUTCOME) else None

    def write_outcome(self, outcome: PromotionOutcome) -> None:
        """Write the outcome of the promotion."""
        self.write(self.OUTCOME, outcome.to_dict())


NEXT_COMMANDS: Mapping[str, str] = MappingProxyType(
    {
        "quality_drop": "qatline run --set quantization.diagnose_layers=10",
        "quality": "qatline run --set qat.epochs=12",
        "group_quality": "qatline run --set quantization.diagnose_layers=10",
        "chance": "qatline runs logs {run} --step train_baseline",
        "int8_fraction": "qatline analyze {run}/artifacts/onnx/qat.onnx --all",
        "speedup": "qatline bench-engine {run}/artifacts/engines/qat.engine --layers",
        "infrastructure": "qatline check-engine {run}/artifacts/engines/qat.engine "
        "--onnx {run}/artifacts/onnx/qat.onnx --layers",
        "verification": "qatline verify {run}/artifacts/onnx/qat.onnx "
        "--plan {run}/artifacts/onnx/plan.json",
        "analysis": "qatline analyze {run}/artifacts/onnx/qat.onnx --all",
        "champion": "qatline registry",
        "champion_quality": "qatline compare",
        "champion_groups": "qatline compare",
        "champion_gain": "qatline compare",
    }
)
"""Suggested command by failed check; ``{run}`` is replaced by the folder of the run."""


def failed_first(reasons: Iterable[Reason]) -> list[Reason]:
    """Return the reasons with failed checks first, otherwise in their order."""
    return sorted(reasons, key=lambda reason: reason.passed)


def next_command(reason: Reason, run: str = "RUN") -> str:
    """Return the suggested command for a failed check.

    Args:
        reason: the check.
        run: folder of the run.

    Returns:
        The command; empty for passed and unknown checks.
    """
    return "" if reason.passed else NEXT_COMMANDS.get(reason.check, "").format(run=run)


def describe_verdict(verdict: Verdict) -> str:
    """Return a verdict in sentences, such as "Verdict: reject. Too slow. Try `...`."."""
    sentences = [f"Verdict: {verdict.verdict}."]
    for reason in failed_first(verdict.reasons):
        sentences.append(reason.message)
        if command := next_command(reason):
            sentences.append(f"Try `{command}`.")
    return " ".join(filter(None, sentences))
