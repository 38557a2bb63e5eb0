"""Compare runs: config differences and results side by side.

Everything comes from MLflow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from components.evaluation.rows import CANDIDATE, REFERENCE, ROWS, reference_title
from pipelines.cli.result_table import format_milliseconds, format_size
from pipelines.comparison.find_runs import RunChoice, find_runs
from pipelines.comparison.tracked_runs import TrackedRun, differing_params

Cell = Callable[[TrackedRun], str]


def compare_runs(names: Sequence[str], *, output: Path, console: Console | None = None) -> None:
    """Print a table with one column per run.

    Args:
        names: Runs by id or folder; empty for the latest five that were tracked.
        output: The folder of the runs.
        console: Where to print; default: stdout.

    Raises:
        ConfigError: There is no such run, or it was not tracked.
        TrackingError: The tracking store can't be read.
    """
    runs = find_runs(RunChoice(names=names, output=output))
    (console or Console(highlight=False)).print(comparison_table(runs))


def comparison_table(runs: Sequence[TrackedRun]) -> Table:
    """Return the table: settings that differ, the verdict, the figures."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("", overflow="fold")
    for run in runs:
        table.add_column(escape(run.name), justify="right", overflow="fold")
    for key in differing_params(runs):
        table.add_row(escape(key), *(escape(run.params.get(key, "-")) for run in runs))
    table.add_section()
    for heading, cell in comparison_lines(runs):
        table.add_row(heading, *map(cell, runs))
    return table


def comparison_lines(runs: Sequence[TrackedRun]) -> Iterator[tuple[str, Cell]]:
    """Yield the name of each figure that any of the runs has, and its text for a run."""
    yield "verdict", lambda run: run.verdict
    measured = {name for run in runs for name in run.rows if run.row(name).accuracy is not None}
    shown = [name for name in ROWS if name in measured]
    for name in shown:
        title = _reference(runs) if name == REFERENCE else ROWS[name]
        yield f"{title}: accuracy", _cell(name, "accuracy", "{:.2%}".format)
    for name in shown:
        if name != REFERENCE:
            yield f"{ROWS[name]}: p50 ms", _cell(name, "latency_ms_p50", format_milliseconds)
    yield f"{ROWS[CANDIDATE]}: size", _cell(CANDIDATE, "bytes", format_size)


def _cell(row: str, figure: str, form: Callable[[float], str]) -> Cell:
    def text(run: TrackedRun) -> str:
        value = getattr(run.row(row), figure)
        return "-" if value is None else form(value)

    return text


def _reference(runs: Sequence[TrackedRun]) -> str:
    """Return the reference's title; both titles if the runs differ."""
    titles = {reference_title(run.params.get("model.framework")) for run in runs}
    return " or ".join(sorted(titles))
