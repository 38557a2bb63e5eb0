"""State of a run, reduced from its events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# Seconds of work at the typical pace that are assumed before the first step.
_PRIOR = 20.0


@dataclass(kw_only=True)
class StepProgress:
    """Current state of a step; ``results`` are the metrics of the finished step."""

    name: str
    status: str = "running"
    seconds: float | None = None
    started: float = 0.0
    phase: str = ""
    waiting_for: str = ""
    current: float = 0.0
    total: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)
    results: dict[str, float] = field(default_factory=dict)
    phase_started: float = 0.0
    phase_first: float = 0.0
    now: float = 0.0

    @property
    def seconds_left(self) -> float | None:
        """Remaining seconds of the phase at the current pace; None before the first report."""
        elapsed, done = self.now - self.phase_started, self.current - self.phase_first
        if done <= 0 or elapsed <= 0:
            return None
        return elapsed * max(self.total - self.current, 0.0) / done

    @property
    def fraction(self) -> float:
        return min(self.current / self.total, 1.0) if self.total > 0 else 0.0


@dataclass(kw_only=True)
class RunProgress:
    """State of a run, updated by events and independent of its display."""

    expected: list[str]
    typical: Mapping[str, float] = field(default_factory=dict)
    now: float = 0.0
    steps: dict[str, StepProgress] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    errors: list[dict[str, Any]] = field(default_factory=list)
    message: str = ""
    stopped: str = ""

    @classmethod
    def of(cls, names: Sequence[str], typical: Mapping[str, float] | None = None) -> RunProgress:
        """Start with the names of the expected steps in order, and their typical seconds."""
        return cls(expected=list(names), typical=typical or {})

    def position(self, name: str) -> tuple[int, int]:
        """Return the step's position, counted from one, and the number of steps."""
        if name not in self.expected:
            self.expected.append(name)
        return self.expected.index(name) + 1, len(self.expected)

    @property
    def running(self) -> StepProgress | None:
        """The step that has started and not ended."""
        return next(
            (step for step in reversed(self.steps.values()) if step.status == "running"), None
        )

    def seconds_left(self, now: float | None = None) -> float | None:
        """Return the remaining seconds of the run; None without typical seconds of all steps.

        Typical seconds are scaled by the pace of the steps so far, and a training goes on at its
        own pace.

        Args:
            now: time of the question, as in events; default: that of the last event.
        """
        if not self.expected or any(name not in self.typical for name in self.expected):
            return None
        now = self.now if now is None else now
        # The first steps are short: their pace counts as one of several measurements.
        taken = typical = _PRIOR
        left, own = 0.0, 0.0
        for name in self.expected:
            step = self.steps.get(name)
            if step is None:
                left += self.typical[name]
            elif step.seconds is not None and step.status != "reused":
                taken += step.seconds
                typical += self.typical[name]
            elif step.status == "running" and step.phase == "training" and step.seconds_left:
                own = max(step.seconds_left - (now - step.now), 0.0)
                taken += now - step.started + own
                typical += self.typical[name]
            elif step.status == "running":
                own = max(self.typical[name] - (now - step.started), 0.0)
        return own + left * taken / typical

    def apply(self, event: Mapping[str, Any]) -> None:
        """Apply one event; unknown kinds are ignored for forward compatibility."""
        kind = event.get("event")
        name = str(event.get("step") or "")
        time = self.now = float(event.get("time") or 0.0)
        if kind == "pipeline_started":
            self.expected = [str(step) for step in event.get("steps", ())]
        elif kind == "message":
            self.message = str(event.get("message", ""))
        elif kind == "step_started":
            self.message = ""
            self.steps[name] = StepProgress(name=name, started=time, now=time)
            self.position(name)
        elif kind == "waiting":
            step = self.steps.setdefault(name, StepProgress(name=name, started=time))
            step.waiting_for = str(event.get("holder", ""))
        elif kind == "progress":
            self._advance(
                self.steps.setdefault(name, StepProgress(name=name, started=time)), event, time
            )
        elif kind == "step_finished":
            step = self.steps.setdefault(name, StepProgress(name=name, started=time))
            step.status = str(event.get("status", "executed"))
            step.seconds = float(event.get("seconds", time - step.started))
            step.results = dict(event.get("metrics") or {})
            self.position(name)
        elif kind == "stopped":
            self.stopped = name
        elif kind == "warning":
            self.warnings.append(
                f"{name}: {event.get('message', '')}" if name else str(event.get("message", ""))
            )
        elif kind == "error":
            self.errors.append(dict(event))
            if name in self.steps:
                self.steps[name].status = "failed"
                self.steps[name].seconds = time - self.steps[name].started

    @staticmethod
    def _advance(step: StepProgress, event: Mapping[str, Any], time: float) -> None:
        phase, current = str(event.get("phase", "")), float(event.get("current") or 0.0)
        if phase != step.phase:
            # Measure the pace from the first report: earlier work, such as imports, would distort
            # it.
            step.phase, step.phase_started, step.phase_first, step.metrics = (
                phase,
                time,
                current,
                {},
            )
        step.now, step.current = time, current
        step.total = float(event.get("total") or 0.0)
        step.metrics = {**step.metrics, **(event.get("metrics") or {})}
