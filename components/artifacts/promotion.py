"""Output of promote: verdict, report and, if passed, the champion."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from components.artifacts.folder import StepFolder
from components.artifacts.record import Record


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
        model: Name under which the champion is registered; empty until the verdict is written.
    """

    model: str = ""
    verdict: Literal["promote", "reject"]
    reasons: tuple[Reason, ...] = ()

    @property
    def promoted(self) -> bool:
        """Whether every check passed."""
        return self.verdict == "promote"


class Promotion(StepFolder):
    """The verdict and the report of a run."""

    STEP: ClassVar[str] = "promote"
    VERDICT: ClassVar[str] = "verdict.json"
    REPORT: ClassVar[str] = "report.html"
    CHAMPION: ClassVar[str] = "champion.onnx"

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

    def write_verdict(self, verdict: Verdict, *, model: str) -> None:
        """Write the verdict; a champion is registered as ``model``."""
        self.write(self.VERDICT, verdict.model_copy(update={"model": model}).to_dict())
