"""Compare runs: config differences and results side by side.

Everything comes from MLflow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from components.artifacts import ResultRow
from components.artifacts.evaluation import rows_of_metrics
from components.evaluation.rows import CANDIDATE, REFERENCE, ROWS, reference_title
from components.runtime.credentials import scrub
from components.tracking.store import translated
from pipelines.cli.result_table import format_milliseconds, format_size
from pipelines.run.folder import RunFolder, find_run
from pipelines.run.record import read_tracking
from qat_lib.errors import ConfigError

_LATEST = 5
_IGNORED = frozenset({"output"})


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
    folders = [find_run(output, name) for name in names] if names else _latest(output)
    runs = [_open(folder) for folder in folders]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("")
    for run in runs:
        table.add_column(escape(run.run_id), justify="right")
    for key in _differing(runs):
        table.add_row(escape(key), *(escape(run.params.get(key, "-")) for run in runs))
    table.add_section()
    table.add_row("verdict", *(run.verdict for run in runs))
    for heading, cell in _figures(runs):
        table.add_row(heading, *map(cell, runs))
    (console or Console(highlight=False)).print(table)


@dataclass(frozen=True, kw_only=True)
class _TrackedRun:
    """What MLflow holds of a run."""

    run_id: str
    params: Mapping[str, str]
    verdict: str
    rows: Mapping[str, ResultRow]

    def row(self, name: str) -> ResultRow:
        return self.rows.get(name, ResultRow())

    def accuracy(self, name: str) -> str:
        return _text(self.row(name).accuracy, "{:.2%}".format)

    def latency(self, name: str) -> str:
        return _text(self.row(name).latency_ms_p50, format_milliseconds)

    def size(self, name: str) -> str:
        return _text(self.row(name).bytes, format_size)


def _figures(runs: Sequence[_TrackedRun]) -> Iterator[tuple[str, Callable[[_TrackedRun], str]]]:
    """Yield each available metric's name and its formatting function."""
    measured = {name for run in runs for name in run.rows if run.row(name).accuracy is not None}
    shown = [name for name in ROWS if name in measured]
    for name in shown:
        title = _reference(runs) if name == REFERENCE else ROWS[name]
        yield f"{title}: accuracy", partial(_TrackedRun.accuracy, name=name)
    for name in shown:
        if name != REFERENCE:
            yield f"{ROWS[name]}: p50 ms", partial(_TrackedRun.latency, name=name)
    yield f"{ROWS[CANDIDATE]}: size", partial(_TrackedRun.size, name=CANDIDATE)


def _reference(runs: Sequence[_TrackedRun]) -> str:
    """Return the reference's title; both titles if the runs differ."""
    titles = {reference_title(run.params.get("model.framework")) for run in runs}
    return " or ".join(sorted(titles))


def _text(value: float | None, form: Callable[[float], str]) -> str:
    return "-" if value is None else form(value)


def _latest(output: Path) -> list[RunFolder]:
    found = sorted(path.parent for path in output.absolute().glob("*/tracking.json"))[-_LATEST:]
    if not found:
        raise ConfigError(f"Expected tracked runs in {output}; there are none.")
    return [RunFolder(path=path) for path in found]


def _open(folder: RunFolder) -> _TrackedRun:
    if not folder.tracking_file.exists():
        raise ConfigError(
            f"Run {folder.run_id} has no record in MLflow: it was not tracked, or ended too early."
        )
    tracking = read_tracking(folder.tracking_file)
    with translated(f"run {folder.run_id} can't be read from {scrub(tracking.uri)}"):
        from mlflow import MlflowClient

        data = MlflowClient(tracking_uri=tracking.uri).get_run(tracking.run_id).data
    return _TrackedRun(
        run_id=folder.run_id,
        params=data.params,
        verdict=data.tags.get("qatline.verdict", "-"),
        # Runs of earlier versions have dots.
        rows=rows_of_metrics(data.metrics, separator=".") | rows_of_metrics(data.metrics),
    )


def _differing(runs: Sequence[_TrackedRun]) -> list[str]:
    """Return the names of params that differ between the runs."""
    names = {name for run in runs for name in run.params} - _IGNORED
    return [name for name in sorted(names) if len({run.params.get(name) for run in runs}) > 1]
