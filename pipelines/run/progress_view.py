"""Display of a run's progress: live in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Protocol, TextIO

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from qatline.components.artifacts.metric import ACCURACY
from qatline.pipelines.run.progress import RunProgress, StepProgress

_BAR = 18  # columns
_LINE_INTERVAL = 5.0  # seconds between two lines of one phase


class ProgressView(Protocol):
    """Progress display of a run; used as a context manager."""

    def __enter__(self) -> ProgressView: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def show(self, event: Mapping[str, Any], progress: RunProgress) -> None:
        """Display an event; ``progress`` already includes it."""


def make_view(stream: TextIO | None = None, *, quiet: bool = False) -> ProgressView:
    """Return the view for a stream: silent, live in a terminal, or line by line."""
    if quiet:
        return SilentView()
    console = Console(file=stream or sys.stdout, highlight=False)
    return (
        LiveView(console)
        if console.is_terminal and not console.is_dumb_terminal
        else LineView(console)
    )


class SilentView:
    """View without output."""

    def __enter__(self) -> SilentView:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return None

    def show(self, event: Mapping[str, Any], progress: RunProgress) -> None:
        """Do nothing."""


class LineView(SilentView):
    """One line per step start, step end and five-second interval."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last: tuple[str, str, float] = ("", "", 0.0)

    def show(self, event: Mapping[str, Any], progress: RunProgress) -> None:
        """Print the line of an event, if any."""
        kind, name = event.get("event"), str(event.get("step") or "")
        if kind == "message":
            self._print(_joined(progress.message, _run_left(progress)))
        elif kind == "step_started":
            self._print(_joined(f"{_head(progress, name)} ...", _run_left(progress)))
        elif kind == "step_finished":
            self._print(f"{_head(progress, name)} {_outcome(progress.steps[name])}")
        elif kind == "warning":
            self._print(f"warning: {progress.warnings[-1]}")
        elif kind == "waiting" and progress.steps[name].waiting_for:
            self._print(f"{_head(progress, name)} {_wait(progress.steps[name])}")
        elif kind == "progress":
            self._advance(progress, progress.steps[name])

    def _advance(self, progress: RunProgress, step: StepProgress) -> None:
        name, phase, at = self._last
        new = (step.name, step.phase) != (name, phase)
        if new or step.now - at >= _LINE_INTERVAL or step.current >= step.total:
            if not new and step.current >= step.total and step.now - at < 0.5:
                return
            self._last = (step.name, step.phase, step.now)
            parts = [f"{step.phase} {step.current:g}/{step.total:g}", _metrics(step), _left(step)]
            self._print(f"{_head(progress, step.name)} {_joined(*parts)}")

    def _print(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=True)


class LiveView:
    """Finished steps as lines, the running step as a progress bar."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress: RunProgress | None = None
        self._spinner = Spinner("dots")
        self._live = Live(
            console=console, get_renderable=self._render, refresh_per_second=8, transient=True
        )

    def __enter__(self) -> LiveView:
        self._live.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def show(self, event: Mapping[str, Any], progress: RunProgress) -> None:
        """Store the state for the next refresh; print permanent lines."""
        self._progress = progress
        kind, name = event.get("event"), str(event.get("step") or "")
        if kind == "step_finished":
            step = progress.steps[name]
            style = "dim" if step.status == "reused" else ""
            self._console.print(
                Text(f"  {_head(progress, name)} {_outcome(step)}", style=style), soft_wrap=True
            )
        elif kind == "warning":
            self._console.print(
                Text(f"  warning: {progress.warnings[-1]}", style="yellow"), soft_wrap=True
            )

    def _render(self) -> Table | Text:
        progress = self._progress
        step = progress.running if progress else None
        if progress is None or step is None:
            started = progress is not None and bool(progress.steps)
            message = (progress.message if progress else "") or (
                "starting the next step" if started else "starting"
            )
            rest = _run_left(progress, time.time()) if progress is not None else ""
            return _row(self._spinner, Text(message), Text(rest, style="dim"))
        now = time.time()
        elapsed = f"{max(now - step.started, 0.0):.0f} s"
        times = Text(_joined(elapsed, _run_left(progress, now)), style="dim")
        head = _row(self._spinner, Text(_head(progress, step.name), style="bold"), times)
        table = Table.grid()
        table.add_row(head)
        if step.waiting_for:
            table.add_row(Text(f"    {_wait(step)}"))
            return table
        if not step.phase:
            return head
        bar = ProgressBar(total=step.total or 1.0, completed=step.current, width=_BAR)
        left = Text(_left(step), style="cyan", no_wrap=True)
        table.add_row(
            _row(
                Text(f"    {step.phase}", no_wrap=True),
                bar,
                Text(_metrics(step), no_wrap=True),
                left,
            )
        )
        return table


def _row(*cells: Any) -> Table:
    grid = Table.grid(padding=(0, 1))
    grid.add_row(*cells)
    return grid


def _head(progress: RunProgress, name: str) -> str:
    place, total = progress.position(name)
    return f"step {place}/{total} {name:<14}"


def _outcome(step: StepProgress) -> str:
    seconds = f"{step.seconds:.1f} s" if step.seconds is not None else ""
    return f"reused ({seconds})" if step.status == "reused" else f"done in {seconds}"


def _joined(*parts: str) -> str:
    return "  ".join(part for part in parts if part)


def _wait(step: StepProgress) -> str:
    return f"waiting for {step.waiting_for}, which computes the same"


def _metrics(step: StepProgress) -> str:
    shown = []
    for name, value in step.metrics.items():
        if value is not None:
            text = ACCURACY.text(value) if name == ACCURACY.name else f"{value:.4f}"
            shown.append(f"{name.replace('_', ' ')} {text}")
    return "  ".join(shown)


def _left(step: StepProgress) -> str:
    seconds = step.seconds_left
    if seconds is None or step.current >= step.total:
        return ""
    return f"{_clock(seconds)} left"


def _run_left(progress: RunProgress, now: float | None = None) -> str:
    seconds = progress.seconds_left(now)
    return "" if seconds is None else f"about {_clock(seconds)} left in all"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"
