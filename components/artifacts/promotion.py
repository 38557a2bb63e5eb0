"""Output of promote: verdict, report and, if passed, the champion."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from qatline.components.artifacts.folder import StepFolder
from qatline.components.artifacts.record import Record


class Reason(Record):
    """One check of the gate.

    Attributes:
        check: Stable name, such as ``accuracy_drop``.
        passed: Whether the engine passed it.
        expected: The bound, in words.
        received: The measurement, in words.
        message: One sentence for people.
    """

    check: str
    passed: bool
    expected: str = ""
    received: str = ""
    message: str = ""


class Verdict(Record):
    """The gate's decision, with one reason per check in a fixed order.

    Attributes:
        model: Name of the registered model, or of the model itself where nothing is registered.
        champion: SHA-256 of the champion's ONNX file that the candidate was compared with; empty
            where there was none.
        evaluation: Identity of the measurements that were judged.
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
        """Names of the checks that failed."""
        return tuple(reason.check for reason in self.reasons if not reason.passed)

    @property
    def summary(self) -> str:
        """The verdict in a few words."""
        failed = ", ".join(self.failed)
        return f"failed {failed}" if failed else f"passed all {len(self.reasons)} checks"


class PromotionOutcome(Record):
    """What became of a candidate in the registry.

    Attributes:
        action: ``promoted``, ``rejected``, or ``unchanged`` where this very candidate was judged
            before or is the champion already.
        version: its version.
        champion: the version that is the champion now; None for none.
        previous: the version that was it before.
        message: one sentence for people.
        verdict: the verdict that counted; it differs from the first one where the champion
            changed meanwhile.
    """

    action: Literal["promoted", "rejected", "unchanged"]
    version: int
    champion: int | None = None
    previous: int | None = None
    message: str = ""
    verdict: Verdict


class Promotion(StepFolder):
    """The verdict and the report of a run."""

    STEP: ClassVar[str] = "promote"
    VERDICT: ClassVar[str] = "verdict.json"
    REPORT: ClassVar[str] = "report.html"
    CHAMPION: ClassVar[str] = "champion.onnx"
    OUTCOME: ClassVar[str] = "registry.json"

    @property
    def report_file(self) -> Path:
        """Path of the report."""
        return self.file(self.REPORT)

    @property
    def champion_file(self) -> Path:
        """Path of the engine's source graph, present if it was promoted."""
        return self.file(self.CHAMPION)

    def verdict(self) -> Verdict:
        """Return the verdict."""
        return self.read(self.VERDICT, Verdict)

    def write_verdict(self, verdict: Verdict) -> None:
        """Write the verdict."""
        self.write(self.VERDICT, verdict.to_dict())

    def outcome(self) -> PromotionOutcome | None:
        """Return what became of the candidate; None where nothing is registered."""
        return self.read(self.OUTCOME, PromotionOutcome) if self.has(self.OUTCOME) else None

    def write_outcome(self, outcome: PromotionOutcome) -> None:
        """Write what became of the candidate."""
        self.write(self.OUTCOME, outcome.to_dict())
