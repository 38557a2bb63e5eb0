"""State of a TrainJob from its status."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Phase = Literal["waiting", "running", "complete", "failed"]


@dataclass(frozen=True, kw_only=True)
class JobState:
    """State of a TrainJob.

    Args:
        phase: ``complete`` and ``failed`` are final.
        message: Kubernetes's reason for a failure or wait.
        pods: number of pods by state: ``active``, ``ready``, ``succeeded``, ``failed``.
    """

    phase: Phase
    message: str
    pods: Mapping[str, int]

    @property
    def ended(self) -> bool:
        """Whether the phase is final."""
        return self.phase in ("complete", "failed")

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {name}" for name, count in self.pods.items() if count)
        return " ".join(filter(None, (self.phase, f"(jobs: {counts})" if counts else "")))


def read_job_state(job: Mapping[str, Any]) -> JobState:
    """Return the state from a TrainJob's conditions; without conditions it is waiting.

    Args:
        job: the object returned by the API.
    """
    status = job.get("status") or {}
    found: dict[str, str] = {}
    for condition in status.get("conditions") or ():
        if condition.get("status") == "True":
            told = (condition.get("reason"), condition.get("message"))
            found[condition["type"]] = ": ".join(filter(None, told))
    pods = _count(status.get("jobsStatus") or ())
    if "Failed" in found:
        return JobState(phase="failed", message=found["Failed"], pods=pods)
    if "Complete" in found:
        return JobState(phase="complete", message=found["Complete"], pods=pods)
    if "Suspended" in found:
        return JobState(phase="waiting", message=found["Suspended"], pods=pods)
    # Trainer sets no condition for a running job: the pods of its JobSet show it.
    running = any(pods.get(name) for name in ("active", "ready", "succeeded"))
    return JobState(phase="running" if running else "waiting", message="", pods=pods)


def _count(jobs: Any) -> dict[str, int]:
    counts: dict[str, int] = {}
    for job in jobs:
        for name in ("active", "ready", "succeeded", "failed"):
            counts[name] = counts.get(name, 0) + int(job.get(name) or 0)
    return counts
