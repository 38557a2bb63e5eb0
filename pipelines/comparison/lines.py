"""Comparison of runs as text: differences in settings, and results.

All data comes from MLflow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rich import box
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from qat_lib.pages import numbers
from qatline.components.artifacts.evaluation import primary_metric
from qatline.components.artifacts.variants import CANDIDATE, REFERENCE, ROWS, reference_title
from qatline.pipelines.comparison.find_runs import RunChoice, find_runs
from qatline.pipelines.comparison.tracked_runs import TrackedRun, differing_params

Cell = Callable[[TrackedRun], str]
# Maximum number of runs per table at 80 columns.
_RUNS_PER_TABLE = 5


def compare_runs(names: Sequence[str], *, output: Path, console: Console | None = None) -> None:
    """Print a comparison of runs.

    Args:
        names: runs by id or folder; empty for the latest five tracked ones.
        output: folder of the runs.
        console: destination; default: stdout.

    Raises:
        ConfigError: a run does not exist or was not tracked.
        TrackingError: the tracking store cannot be read.
    """
    runs = find_runs(RunChoice(names=names, output=output))
    (console or Console(highlight=False)).print(comparison_view(runs))


def comparison_view(runs: Sequence[TrackedRun]) -> RenderableType:
    """Return the numbered runs, the settings that differ, and tables of the metrics.

    Run names and values may be long and are therefore printed as lines instead of columns.
    """
    parts: list[RenderableType] = [
        _line(f"{number}  {run.name}") for number, run in _numbered(runs)
    ]
    if settings := differing_settings(runs):
        parts += [Text(""), Text("Settings that differ", "bold")]
    for key, values in settings.items():
        parts.append(_line(key))
        parts += [_line(f"  {_listed(numbers)}: {value}") for value, numbers in values.items()]
    lines = list(comparison_lines(runs))
    numbered = list(_numbered(runs))
    # Further runs get tables below: more columns do not fit into 80 characters.
    for start in range(0, len(numbered), _RUNS_PER_TABLE):
        chosen = numbered[start : start + _RUNS_PER_TABLE]
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
        table.add_column("", no_wrap=True)
        for number, _ in chosen:
            table.add_column(str(number), justify="right", overflow="fold")
        for heading, cell in lines:
            table.add_row(heading, *(escape(cell(run)) for _, run in chosen))
        parts.append(table)
    return Group(*parts)


def differing_settings(runs: Sequence[TrackedRun]) -> dict[str, dict[str, list[int]]]:
    """Return the settings that differ, with the run numbers of each value.

    Numbers start at 1. The value of a missing setting is ``-``.
    """
    found: dict[str, dict[str, list[int]]] = {}
    for key in differing_params(runs):
        for number, run in _numbered(runs):
            found.setdefault(key, {}).setdefault(run.params.get(key, "-"), []).append(number)
    return found


def _numbered(runs: Sequence[TrackedRun]) -> Iterator[tuple[int, TrackedRun]]:
    yield from enumerate(runs, 1)


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def _line(text: str) -> Text:
    return Text(text, overflow="fold")


def comparison_lines(runs: Sequence[TrackedRun]) -> Iterator[tuple[str, Cell]]:
    """Yield the name of each available metric, with a function that formats it for a run."""
    yield "verdict", lambda run: run.verdict
    measured = {name for run in runs for name in run.rows if run.row(name).value is not None}
    metric = primary_metric({run.name: run.row(CANDIDATE) for run in runs})
    shown = [name for name in ROWS if name in measured]
    for name in shown:
        title = _reference(runs) if name == REFERENCE else ROWS[name]
        yield f"{title}: {metric.label}", _quality_cell(name)
    for name in shown:
        if name != REFERENCE:
            yield f"{ROWS[name]}: p50 ms", _cell(name, "latency_ms_p50", numbers.significant)
    yield f"{ROWS[CANDIDATE]}: size", _cell(CANDIDATE, "bytes", numbers.size)


def _cell(row: str, figure: str, form: Callable[[float], str]) -> Cell:
    def text(run: TrackedRun) -> str:
        value = getattr(run.row(row), figure)
        return "-" if value is None else form(value)

    return text


def _quality_cell(row: str) -> Cell:
    def text(run: TrackedRun) -> str:
        found = run.row(row)
        return "-" if found.value is None else found.metric.text(found.value)

    return text


def _reference(runs: Sequence[TrackedRun]) -> str:
    """Return the reference's title, or all titles if the runs differ."""
    titles = {reference_title(run.params.get("model.framework")) for run in runs}
    return " or ".join(sorted(titles))
