"""Runs side by side: what differs in their configs, and what came of it.

Everything comes from MLflow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from components.artifacts import ResultRow
from components.artifacts.evaluation import rows_of_metrics
from components.evaluation.rows import CANDIDATE, REFERENCE, ROWS
from components.runtime.credentials import scrub
from components.runtime.tracking_store import translated
from pipelines.result_table import format_milliseconds, format_size
from pipelines.run_folder import RunFolder, find_run
from pipelines.run_record import read_tracking
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
    records = [_record(folder) for folder in folders]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("")
    for folder in folders:
        table.add_column(escape(folder.run_id), justify="right")
    for key in _differing([record.params for record in records]):
        table.add_row(escape(key), *(escape(record.params.get(key, "-")) for record in records))
    table.add_section()
    table.add_row("verdict", *(record.tags.get("qatline.verdict", "-") for record in records))
    results = [rows_of_metrics(record.metrics, separator=".") for record in records]
    for heading, cells in _figures(results):
        table.add_row(heading, *cells)
    (console or Console(highlight=False)).print(table)


def _figures(results: Sequence[Mapping[str, ResultRow]]) -> Iterator[tuple[str, list[str]]]:
    """Yield the name of each figure and its value in each run."""
    shown = [
        name for name in ROWS if any(_row(rows, name).accuracy is not None for rows in results)
    ]
    for name in shown:
        yield f"{ROWS[name]}: accuracy", [_percent(_row(rows, name).accuracy) for rows in results]
    for name in shown:
        if name != REFERENCE:
            medians = [_row(rows, name).latency_ms_p50 for rows in results]
            yield f"{ROWS[name]}: p50 ms", [_text(value, format_milliseconds) for value in medians]
    sizes = [_row(rows, CANDIDATE).bytes for rows in results]
    yield f"{ROWS[CANDIDATE]}: size", [_text(size, format_size) for size in sizes]


def _row(rows: Mapping[str, ResultRow], name: str) -> ResultRow:
    return rows.get(name, ResultRow())


def _percent(value: float | None) -> str:
    return _text(value, "{:.2%}".format)


def _text(value: float | None, form: Callable[[float], str]) -> str:
    return "-" if value is None else form(value)


def _latest(output: Path) -> list[RunFolder]:
    found = sorted(path.parent for path in output.absolute().glob("*/tracking.json"))[-_LATEST:]
    if not found:
        raise ConfigError(f"Expected tracked runs in {output}; there are none.")
    return [RunFolder(path=path) for path in found]


def _record(folder: RunFolder) -> Any:
    if not folder.tracking_file.exists():
        raise ConfigError(
            f"Run {folder.run_id} has no record in MLflow: it was not tracked, or ended too early."
        )
    tracking = read_tracking(folder.tracking_file)
    with translated(f"run {folder.run_id} can't be read from {scrub(tracking.uri)}"):
        from mlflow import MlflowClient

        return MlflowClient(tracking_uri=tracking.uri).get_run(tracking.run_id).data


def _differing(params: Sequence[dict[str, str]]) -> list[str]:
    keys = sorted({key for each in params for key in each} - _IGNORED)
    return [key for key in keys if len({each.get(key) for each in params}) > 1]
