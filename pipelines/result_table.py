"""Show a finished run: the table, the gate's verdict, where things are. Made to read well at 80 columns."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from components.evaluation.rows import CANDIDATE, REFERENCE, ROWS

_NONE = "-"


def show_result(console: Console, result: Mapping[str, Any], *, seconds: float) -> None:
    """Print the results of a run, then its verdict and its places."""
    results = result.get("results") or {}
    if results:
        console.print()
        console.print(results_table(results))
    gate = result.get("gate") or {}
    if gate.get("verdict"):
        _show_gate(console, gate)
    _show_places(console, result)
    steps = result.get("steps") or []
    reused = sum(step["status"] == "reused" for step in steps)
    counts = f"{len(steps)} steps, {reused} reused" if reused else f"{len(steps)} steps"
    console.print(Text(f"Done in {_duration(seconds)}: {counts}."), soft_wrap=True)


def results_table(results: Mapping[str, Mapping[str, Any]]) -> Table:
    """Return the table of the variants.

    Accuracies are shares of the test part in percent, changes are percentage points against FP32
    Keras, latencies are milliseconds at batch 1, INT8 counts the weighted layers that run in INT8.
    """
    batch = next((row["batch_size"] for row in results.values() if row.get("batch_size")), None)
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    table.add_column("", no_wrap=True)
    for heading in (
        "accuracy",
        "change",
        "size",
        "p50 / p99 ms",
        f"img/s @{batch}" if batch else "img/s",
        "INT8",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    reference = (results.get(REFERENCE) or {}).get("accuracy")
    for key, title in ROWS.items():
        row = results.get(key)
        if row is not None:
            style = "bold" if key == CANDIDATE else ""
            table.add_row(title, *_cells(row, None if key == REFERENCE else reference), style=style)
    return table


def _cells(row: Mapping[str, Any], reference: float | None) -> list[str]:
    accuracy, p50, p99 = row.get("accuracy"), row.get("latency_ms_p50"), row.get("latency_ms_p99")
    weighted = row.get("weighted_layers")
    return [
        _NONE if accuracy is None else f"{accuracy:.2%}",
        _NONE if accuracy is None or reference is None else f"{(accuracy - reference) * 100:+.2f}",
        _NONE if row.get("bytes") is None else format_size(row["bytes"]),
        _NONE
        if p50 is None
        else " / ".join(format_milliseconds(value) for value in (p50, p99) if value is not None),
        _NONE if row.get("throughput") is None else f"{row['throughput']:,.0f}",
        _NONE
        if not weighted or row.get("int8_layers") is None
        else f"{row['int8_layers']}/{weighted}",
    ]


def _show_gate(console: Console, gate: Mapping[str, Any]) -> None:
    promoted = gate["verdict"] == "promote"
    console.print()
    verdict = (str(gate["verdict"]), "bold green" if promoted else "bold red")
    console.print(Text.assemble(("Gate: ", "bold"), verdict))
    for reason in gate.get("reasons") or []:
        passed, message = (
            (reason.get("passed"), reason.get("message"))
            if isinstance(reason, dict)
            else (None, reason)
        )
        mark = "pass" if passed else "FAIL" if passed is False else "    "
        for number, part in enumerate(
            textwrap.wrap(str(message), max(console.width - 7, 20)) or [""]
        ):
            head = (f"  {mark if number == 0 else '    '} ", "green" if passed else "red")
            console.print(Text.assemble(head, part), soft_wrap=True)


def _show_places(console: Console, result: Mapping[str, Any]) -> None:
    run_dir = Path(result["run_dir"])
    places = {"Run": str(_short(run_dir))}
    if (run_dir / "artifacts" / "engines").exists():
        places["Engines"] = str(_short(run_dir / "artifacts" / "engines"))
    if result.get("report"):
        places["Report"] = str(_short(Path(result["report"])))
    if (result.get("tracking") or {}).get("run_id"):
        places["MLflow"] = ui_command(run_dir)
    console.print()
    for name, place in places.items():
        # Never wrapped: a path or a command is there to be copied.
        console.print(Text.assemble((f"{name:<8} ", "bold"), place), soft_wrap=True)
    console.print()


def ui_command(run_dir: Path) -> str:
    """Return the command that opens MLflow's UI on a run, as this process was started."""
    return f"{'uv run ' if os.environ.get('UV') else ''}qatline ui {_short(run_dir)}"


def _short(path: Path) -> Path:
    try:
        return path.relative_to(Path.cwd())
    except ValueError:
        return path


def format_milliseconds(value: float) -> str:
    """Return milliseconds with three digits or so."""
    return f"{value:.3f}" if value < 1 else f"{value:.2f}" if value < 100 else f"{value:.0f}"


def format_size(count: float) -> str:
    """Return a number of bytes with a decimal unit."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.2f} GB"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{seconds:.1f} s"
