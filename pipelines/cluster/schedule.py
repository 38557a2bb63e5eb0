"""Schedules of pipeline runs as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from qat_lib.errors import ConfigError

ENABLED, DISABLED = "ENABLED", "DISABLED"


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Schedule of repeated pipeline runs.

    Args:
        name: name of the schedule, unique on the server.
        cron: six fields, seconds first, such as ``0 0 2 * * *`` for two o'clock every night.
        every: seconds between the starts of two runs, instead of ``cron``.
        max_concurrency: maximum number of simultaneous runs of this schedule, 1 to 10.
        paused: whether the schedule is inactive.
    """

    name: str
    cron: str = ""
    every: int = 0
    max_concurrency: int = 1
    paused: bool = False

    def __post_init__(self) -> None:
        if bool(self.cron) is bool(self.every):
            received = "both" if self.cron else "neither"
            raise ConfigError(
                "Expected a cron expression or an interval, such as --cron '0 0 2 * * *' or "
                f"--every 6h; received {received}."
            )
        if self.cron and len(self.cron.split()) != 6:
            raise ConfigError(
                "Expected cron with six fields, seconds first, such as '0 0 2 * * *'; received "
                f"{self.cron!r}."
            )
        if self.every < 0:
            raise ConfigError(f"Expected an interval of at least 1 s, received {self.every} s.")
        if not 1 <= self.max_concurrency <= 10:
            raise ConfigError(
                f"Expected max_concurrency from 1 to 10, received {self.max_concurrency}."
            )

    @property
    def when(self) -> str:
        """The trigger as text: ``cron 0 0 2 * * *`` or ``every 6h``."""
        return f"cron {self.cron}" if self.cron else f"every {_duration(self.every)}"


@dataclass(frozen=True, kw_only=True)
class ScheduledRun:
    """A run started by a schedule."""

    run_id: str
    started: str
    state: str


@dataclass(frozen=True, kw_only=True)
class ScheduleDetails:
    """A schedule and its state on the server.

    Args:
        version: name of the pipeline version, derived from its content.
        runs: latest runs, newest first.
    """

    schedule: Schedule
    experiment: str
    version: str
    service_account: str
    runs: tuple[ScheduledRun, ...]


def schedule_of(job: Any) -> Schedule | None:
    """Return a server's recurring run as a Schedule; None without a trigger."""
    cron = getattr(getattr(job.trigger, "cron_schedule", None), "cron", None) or ""
    seconds = getattr(getattr(job.trigger, "periodic_schedule", None), "interval_second", None)
    if not cron and not seconds:
        return None
    return Schedule(
        name=job.display_name,
        cron=cron,
        every=0 if cron else int(seconds or 0),
        max_concurrency=int(job.max_concurrency or 1),
        paused=str(job.status or "") == DISABLED,
    )


def is_same(job: Any, wanted: Schedule, *, version: str, experiment: str, account: str) -> bool:
    """Return whether a server's recurring run matches the requested schedule.

    The comparison covers trigger, concurrency, version, experiment, service account and activity.
    """
    return (
        str(job.status or "") == (DISABLED if wanted.paused else ENABLED)
        and schedule_of(job) == wanted
        and version_id(job) == version
        and (job.experiment_id or "") == experiment
        and (job.service_account or "") == account
    )


def version_id(job: Any) -> str:
    """Return the id of the pipeline version that a recurring run starts."""
    return getattr(job.pipeline_version_reference, "pipeline_version_id", None) or ""


def _duration(seconds: int) -> str:
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds % size == 0:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"
