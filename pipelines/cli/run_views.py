"""What the commands on runs and on registered versions show; made to read well at 80 columns."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from qat_lib.errors import ConfigError, StorageError
from qat_lib.files.output_files import check_output
from qat_lib.pages import numbers
from qatline.components.registry.facts import (
    BACKEND,
    DATA,
    FAILED,
    LATENCY,
    QUALITY,
    TARGET,
    tag_metric,
    tag_number,
)
from qatline.components.registry.journal import history
from qatline.components.registry.registry import RUN, VERDICT, RegisteredVersion, Registry
from qatline.components.support.credentials import check_address, scrub
from qatline.pipelines.cli.model_views import write_file
from qatline.pipelines.cli.options import print_json
from qatline.pipelines.run.folder import RunFolder
from qatline.pipelines.run.log_lines import read_lines
from qatline.pipelines.run.overview import RunDetails, RunSummary, StepSummary, run_progress
from qatline.pipelines.run.result_table import (
    results_table,
    short_path,
    show_gate,
)

if TYPE_CHECKING:
    from qatline.pipelines.comparison.find_runs import RunChoice
    from qatline.pipelines.run.removal import Removal

_STYLES = {
    "finished": "green",
    "running": "cyan",
    "failed": "bold red",
    "interrupted": "yellow",
    "damaged": "bold red",
}
_NONE = "-"
_MOVES = 20


def show_runs(runs: Sequence[RunSummary], folder: Path, console: Console | None = None) -> None:
    """Print one line per run, then the problems of damaged runs."""
    console = console or Console(highlight=False)
    if not runs:
        console.print(Text(f"No runs in {folder}."), soft_wrap=True)
        return
    # A space between the columns, so that all of a verdict is seen at 80 columns.
    table = Table(box=box.SIMPLE_HEAD, padding=0, pad_edge=False, show_edge=False)
    names = {run.metric for run in runs if run.value is not None}
    # Runs of different tasks in one folder have no common metric.
    quality = names.pop().replace("_", " ") if len(names) == 1 else "quality"
    for heading in ("run", "status", "started", "duration", quality, "verdict"):
        right = heading in ("duration", quality)
        table.add_column(heading, justify="right" if right else "left", no_wrap=True)
    for run in runs:
        table.add_row(
            escape(run.run_id),
            Text(run.status, _STYLES.get(run.status, "")),
            _local_time(run.created, "%m-%d %H:%M"),  # the id has the year
            _NONE if run.seconds is None else numbers.seconds(run.seconds),
            run.value_text or _NONE,
            escape(run.verdict or _NONE),
        )
    console.print(table)
    for run in runs:
        if run.problem is not None:
            console.print(Text(f"{run.run_id}: {run.problem}"), soft_wrap=True)


def show_removal(
    removal: Removal, folder: Path, *, delete: bool, console: Console | None = None
) -> None:
    """Print the runs and cached results that are removed, or would be."""
    console = console or Console(highlight=False)
    if removal.runs:
        show_runs(removal.runs, folder, console)
    for run_id, reason in removal.kept.items():
        console.print(Text(f"{run_id} is kept: {reason}."), soft_wrap=True)
    runs, results = len(removal.runs), len(removal.results)
    what = f"{runs} run{'s' * (runs != 1)} and {results} cached result{'s' * (results != 1)}"
    console.print(f"{'Removed ' * delete}{what}, {numbers.size(removal.freed)}.")
    if not delete and (runs or results):
        console.print("Nothing is removed yet: add --delete.")


def show_details(details: RunDetails) -> None:
    """Print all about one run."""
    console, run = Console(highlight=False), details.summary
    parts = [run.status, f"started {_local_time(run.created)}"]
    if run.seconds is not None:
        parts.append(numbers.seconds(run.seconds))
    if run.attempts > 1:
        parts.append(f"{run.attempts} attempts")
    console.print(Text(f"{run.run_id}: {', '.join(parts)}"), soft_wrap=True)
    console.print()
    if details.config:
        console.print(Text("Config, where it is not the default:", "bold"))
        for key, value in details.config.items():
            console.print(Text(f"  {key}: {_yaml(value)}"), soft_wrap=True)
    else:
        console.print("Config: all defaults")
    console.print()
    console.print(_steps_table(details.steps))
    for message in details.errors:
        console.print(Text(f"Error: {message}"), soft_wrap=True)
    if details.result.rows:
        console.print()
        console.print(results_table(details.result.rows))
    if details.result.gate.verdict:
        show_gate(console, details.result.gate, Path(run.path))
    console.print()
    for name, path in details.paths.items():
        console.print(Text.assemble((f"{name:<10}", "bold"), str(short_path(path))), soft_wrap=True)


def print_log(folder: RunFolder, *, step: str | None, follow: bool) -> None:
    """Print the log of a run, or of one step of it.

    Raises:
        ConfigError: The run has no such step.
        StorageError: The run has no log.
    """
    if step is not None:
        known = run_progress(folder).expected
        if step not in known:
            raise ConfigError(
                f"Expected a step of run {folder.run_id} ({', '.join(known)}), received {step!r}."
            )
    if not follow and not folder.log_file.exists():
        raise StorageError(
            f"Expected the log of run {folder.run_id} at {folder.log_file}; there is none."
        )

    def goes_on() -> bool:
        return follow and folder.settle().status == "running"

    for line in read_lines(folder.log_file, step=step, goes_on=goes_on):
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


def show_comparison(choice: RunChoice, *, html: Path | None, as_json: bool) -> None:
    """Print the comparison, and write its page if asked to.

    Raises:
        ConfigError: there is no such run, or the page can't be written.
        TrackingError: a store can't be read.
    """
    from qatline.pipelines.comparison.find_runs import find_runs
    from qatline.pipelines.comparison.lines import comparison_view

    if choice.uri is not None:
        check_address(choice.uri, "--tracking-uri")
    if html is not None:
        check_output(html)
    runs = find_runs(choice, details=html is not None)
    if html is not None:
        from qatline.pipelines.comparison.page import render_comparison

        write_file(html, render_comparison(runs, source=_source(choice)))
    if as_json:
        print_json({"runs": [run.to_dict() for run in runs]})
        return
    console = Console(highlight=False)
    console.print(comparison_view(runs))
    if html is not None:
        console.print(f"Wrote {html}", soft_wrap=True)


def registry_content(registry: Registry) -> dict[str, Any]:
    """Return versions, aliases and moves as plain data."""
    state = registry.state()
    names: dict[int, list[str]] = {}
    for alias, number in state.aliases.items():
        names.setdefault(number, []).append(alias)
    versions = []
    for version in registry.versions():
        versions.append(_version(version, sorted(names.get(version.number, []))))
    moves = []
    for move in history(state.tags):
        moves.append(
            {
                "at": move.at,
                "action": move.action,
                "from": move.left,
                "to": move.to,
                "by": move.by,
                "reason": move.reason,
            }
        )
    return {
        "name": registry.name,
        "aliases": dict(state.aliases),
        "versions": versions,
        "moves": moves,
    }


def show_versions(content: Mapping[str, Any]) -> None:
    """Print the versions, then the history of the champion."""
    console = Console(highlight=False)
    if not content["versions"]:
        console.print(Text(f"{content['name']} has no versions."), soft_wrap=True)
        return
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    quality = content["versions"][-1]["metric"].replace("_", " ")
    for heading in ("", "", quality, "p50 ms", "target", "data", "run"):
        right = heading in (quality, "p50 ms")
        table.add_column(heading, justify="right" if right else "left", no_wrap=True)
    for version in content["versions"]:
        # Other aliases are the user's.
        champion = "champion" in version["aliases"]
        table.add_row(*_cells(version), style="bold" if champion else "")
    console.print(table)
    for version in content["versions"]:
        if version["failed"]:
            text = f"Version {version['version']} failed: {version['failed']}."
            console.print(Text(text), soft_wrap=True)
    console.print()
    for move in content["moves"][-_MOVES:]:
        left = f"version {move['from']}" if move["from"] else "none"
        text = f"{move['at'][:16]}  {move['action']}: {left} -> version {move['to']}"
        by = f"by {move['by']}" + (f": {move['reason']}" if move["reason"] else "")
        console.print(Text(text), soft_wrap=True)
        console.print(Text(f"                  {by}"), soft_wrap=True)


def _steps_table(steps: Sequence[StepSummary]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    table.add_column("step", no_wrap=True)
    table.add_column("status", no_wrap=True)
    table.add_column("duration", justify="right", no_wrap=True)
    for step in steps:
        time = _NONE if step.seconds is None else numbers.seconds(step.seconds)
        table.add_row(escape(step.name), Text(step.status, _STYLES.get(step.status, "")), time)
    return table


def _local_time(created: str | None, form: str = "%Y-%m-%d %H:%M") -> str:
    """Return an ISO 8601 time as local time."""
    if created is None:
        return _NONE
    try:
        return datetime.fromisoformat(created).astimezone().strftime(form)
    except ValueError:
        return escape(created)


def _yaml(value: object) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=1000)
    return text.removesuffix("\n").removesuffix("\n...")


def _source(choice: RunChoice) -> str:
    if choice.experiment is not None:
        return f"experiment {choice.experiment}"
    return scrub(choice.uri or str(choice.output.absolute()))


def _version(version: RegisteredVersion, aliases: list[str]) -> dict[str, Any]:
    created = None
    if version.created:
        moment = datetime.fromtimestamp(version.created / 1000, timezone.utc)
        created = moment.isoformat(timespec="seconds")
    metric, value = tag_metric(version.tags), tag_number(version.tags, QUALITY)
    return {
        "version": version.number,
        "state": version.state,
        "aliases": aliases,
        "verdict": version.tags.get(VERDICT),
        "failed": version.tags.get(FAILED) or None,
        "metric": metric.name,
        "value": value,
        "value_text": _NONE if value is None else metric.text(value),
        "latency_ms": tag_number(version.tags, LATENCY),
        "backend": version.tags.get(BACKEND),
        "target": version.tags.get(TARGET),
        "data": version.tags.get(DATA),
        "run": version.tags.get(RUN),
        "mlflow_run": version.run_id or None,
        "digest": version.digest or None,
        "created": created,
    }


def _cells(version: Mapping[str, Any]) -> list[str]:
    latency = version["latency_ms"]
    return [
        str(version["version"]),
        escape(", ".join(version["aliases"]) or version["state"]),
        version["value_text"],
        _NONE if latency is None else numbers.significant(latency),
        escape(version["target"] or _NONE),
        escape((version["data"] or _NONE)[:8]),
        escape(version["run"] or _NONE),
    ]
