"""Display of a finished run: table, verdict of the gate, paths.

The layout fits 80 columns.
"""

from __future__ import annotations

import os
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from qat_lib.pages import numbers
from qatline.components.artifacts import Engines, ResultRow
from qatline.components.artifacts.evaluation import primary_metric
from qatline.components.artifacts.promotion import failed_first, next_command
from qatline.components.artifacts.variants import CANDIDATE, REFERENCE, ROWS, row_title
from qatline.pipelines.run.folder import RunFolder
from qatline.pipelines.run.result import GateResult, RunResult
from qatline.pipelines.steps import STEP_ARTIFACTS

_NONE = "-"


def show_result(console: Console, result: RunResult, *, seconds: float) -> None:
    """Print the results of a run, followed by its verdict and paths."""
    if result.rows:
        console.print()
        console.print(results_table(result.rows))
        show_speed(console, result.speed)
    if result.gate.verdict:
        show_gate(console, result.gate, Path(result.run_dir))
        _show_registry(console, result)
    if result.nothing_new:
        console.print(Text(f"Nothing new: {result.nothing_new}"), soft_wrap=True)
    _show_places(console, result)
    reused = sum(step.status == "reused" for step in result.steps)
    counts = f"{len(result.steps)} steps" + (f", {reused} reused" if reused else "")
    console.print(Text(f"Done in {numbers.seconds(seconds)}: {counts}."), soft_wrap=True)


def results_table(rows: Mapping[str, ResultRow]) -> Table:
    """Return the table of the variants.

    Metrics are those of the test part, changes are relative to FP32 (percentage points of shares),
    latencies are milliseconds at batch 1, and INT8 is the number of weighted layers that run in
    INT8.
    """
    batch = next((row.batch_size for row in rows.values() if row.batch_size), None)
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    table.add_column("", no_wrap=True)
    rate = f"per s @{batch}" if batch else "per s"
    for heading in (primary_metric(rows).label, "change", "size", "p50 / p99 ms", rate, "INT8"):
        table.add_column(heading, justify="right", no_wrap=True)
    reference = rows.get(REFERENCE, ResultRow()).value
    for name in ROWS:
        if name in rows:
            style = "bold" if name == CANDIDATE else ""
            cells = _cells(rows[name], None if name == REFERENCE else reference)
            table.add_row(row_title(name, rows[name].backend), *cells, style=style)
    return table


def _cells(row: ResultRow, reference: float | None) -> list[str]:
    return [
        _NONE if row.value is None else row.metric.text(row.value),
        _change(row, reference),
        _NONE if row.bytes is None else numbers.size(row.bytes),
        _latencies(row),
        _NONE if row.throughput is None else f"{row.throughput:,.0f}",
        _int8(row),
    ]


def _change(row: ResultRow, reference: float | None) -> str:
    if row.value is None or reference is None:
        return _NONE
    return row.metric.change(row.value, reference)


def _latencies(row: ResultRow) -> str:
    if row.latency_ms_p50 is None:
        return _NONE
    measured = [value for value in (row.latency_ms_p50, row.latency_ms_p99) if value is not None]
    return " / ".join(map(numbers.significant, measured))


def _int8(row: ResultRow) -> str:
    if row.int8_layers is None or not row.weighted_layers:
        return _NONE
    return f"{row.int8_layers}/{row.weighted_layers}"


def show_speed(console: Console, sentences: Sequence[str]) -> None:
    """Print the speed compared with FP32, with the reasons of small gains."""
    if sentences:
        console.print()
    for sentence in sentences:
        for line in textwrap.wrap(sentence, max(console.width - 1, 20)):
            console.print(Text(line), soft_wrap=True)


def show_gate(console: Console, gate: GateResult, run_dir: Path) -> None:
    """Print the gate's verdict with its reasons, failed ones first and with a suggestion."""
    promoted = gate.verdict == "promote"
    console.print()
    verdict = (str(gate.verdict), "bold green" if promoted else "bold red")
    console.print(Text.assemble(("Gate: ", "bold"), verdict))
    for reason in failed_first(gate.reasons):
        mark, style = ("pass", "green") if reason.passed else ("FAIL", "red")
        lines = textwrap.wrap(reason.message, max(console.width - 7, 20)) or [""]
        for number, line in enumerate(lines):
            head = (f"  {mark if number == 0 else '    '} ", style)
            console.print(Text.assemble(head, line), soft_wrap=True)
        if command := next_command(reason, str(short_path(run_dir))):
            console.print(Text.assemble(("       Try ", "bold"), command), soft_wrap=True)


def _show_registry(console: Console, result: RunResult) -> None:
    if result.registry is None:
        text = "Not registered: registry.name is not set."
    else:
        text = f"{result.registry.verdict.model}: {result.registry.message}"
    lines = textwrap.wrap(text, max(console.width - 2, 20))
    for line in lines:
        console.print(Text(f"  {line}"), soft_wrap=True)


def _show_places(console: Console, result: RunResult) -> None:
    folder = RunFolder(path=Path(result.run_dir))
    places = {"Run": str(short_path(folder.path))}
    engines = folder.artifacts_dir / STEP_ARTIFACTS[Engines.STEP]
    if engines.exists():
        places["Engines"] = str(short_path(engines))
    if result.report:
        places["Report"] = str(short_path(Path(result.report)))
    if result.tracking is not None:
        places["MLflow"] = ui_command(folder.path)
    console.print()
    for name, place in places.items():
        # Never wrapped: users copy paths and commands.
        console.print(Text.assemble((f"{name:<8} ", "bold"), place), soft_wrap=True)
    console.print()


def ui_command(run_dir: Path) -> str:
    """Return the command for MLflow's UI on a run, with ``uv run`` if uv started this process."""
    return f"{'uv run ' if os.environ.get('UV') else ''}qatline ui {short_path(run_dir)}"


def short_path(path: Path) -> Path:
    """Return a path relative to the working directory if it is below it, else unchanged."""
    try:
        return path.relative_to(Path.cwd())
    except ValueError:
        return path
