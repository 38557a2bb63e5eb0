"""Callbacks of TensorRT: log messages, build progress, layer times.

The base classes come from the installed bindings, so functions create the subclasses. A callback
must not raise, since TensorRT calls it from C++.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_LEVELS = ("INTERNAL_ERROR", "ERROR", "WARNING", "INFO", "VERBOSE")


class BuildLog:
    """Messages of a build with their levels."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, str]] = []

    def add(self, level: str, message: str) -> None:
        """Store a message, unless its level is VERBOSE."""
        if level != "VERBOSE":
            self.messages.append((level, message.strip()))

    def text(self) -> str:
        """Return the log, one message per line."""
        return "".join(f"[{level}] {message}\n" for level, message in self.messages)

    def errors(self) -> list[str]:
        """Return the error messages."""
        return [message for level, message in self.messages if level in ("ERROR", "INTERNAL_ERROR")]

    def warnings(self) -> tuple[str, ...]:
        """Return the distinct warnings, each with its count if repeated."""
        counts: dict[str, int] = {}
        for level, message in self.messages:
            if level == "WARNING":
                counts[message] = counts.get(message, 0) + 1
        warnings = []
        for message, count in counts.items():
            warnings.append(message if count == 1 else f"{message} ({count} times)")
        return tuple(warnings)


def make_logger(trt: Any, log: BuildLog) -> Any:
    """Return a TensorRT logger that writes into ``log``."""
    names = {getattr(trt.ILogger.Severity, level): level for level in _LEVELS}

    class Logger(trt.ILogger):
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, msg: str) -> None:
            log.add(names.get(severity, "INFO"), msg)

    return Logger()


class Cancellation:
    """State of a request to stop a build, from its caller or Ctrl-C."""

    def __init__(self, asked: Callable[[], bool] | None) -> None:
        self._asked = asked
        self.interrupted = False

    def requested(self) -> bool:
        """Return whether the build should stop."""
        return self.interrupted or (self._asked is not None and self._asked())


def make_progress_monitor(
    trt: Any, on_progress: Callable[[str, int, int], None] | None, cancellation: Cancellation
) -> Any:
    """Return a monitor that reports the outermost phases and stops cancelled builds."""

    class Monitor(trt.IProgressMonitor):
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)
            self._steps: dict[str, int] = {}

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            if parent_phase is None:
                self._steps[phase_name] = num_steps
                self._report(phase_name, 0)

        def step_complete(self, phase_name: str, step: int) -> bool:
            if phase_name in self._steps:
                self._report(phase_name, step + 1)
            try:
                return not cancellation.requested()
            except KeyboardInterrupt:  # the signal handler runs as soon as Python code does
                cancellation.interrupted = True
                return False

        def phase_finish(self, phase_name: str) -> None:
            if phase_name in self._steps:
                self._report(phase_name, self._steps.pop(phase_name))

        def _report(self, phase: str, done: int) -> None:
            if on_progress is not None:
                on_progress(phase, done, self._steps.get(phase, done))

    return Monitor()


def make_profiler(trt: Any, times: dict[str, list[float]]) -> Any:
    """Return a profiler that collects milliseconds by layer name."""

    class Profiler(trt.IProfiler):
        def __init__(self) -> None:
            trt.IProfiler.__init__(self)

        def report_layer_time(self, layer_name: str, ms: float) -> None:
            times.setdefault(layer_name, []).append(ms)

    return Profiler()
