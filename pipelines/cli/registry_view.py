"""A registered model's versions and moves; made to read well at 80 columns."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from qatline.components.registry.facts import (
    ACCURACY,
    BACKEND,
    DATA,
    FAILED,
    LATENCY,
    TARGET,
    tag_number,
)
from qatline.components.registry.journal import history
from qatline.components.registry.registry import RUN, VERDICT, RegisteredVersion, Registry
from qatline.pipelines.run.result_table import format_milliseconds

_NONE = "-"
_MOVES = 20


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
    """Print the versions, then who moved the champion when."""
    console = Console(highlight=False)
    if not content["versions"]:
        console.print(Text(f"{content['name']} has no versions."), soft_wrap=True)
        return
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for heading in ("", "", "accuracy", "p50 ms", "target", "data", "run"):
        right = heading in ("accuracy", "p50 ms")
        table.add_column(heading, justify="right" if right else "left", no_wrap=True)
    for version in content["versions"]:
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


def _version(version: RegisteredVersion, aliases: list[str]) -> dict[str, Any]:
    created = None
    if version.created:
        moment = datetime.fromtimestamp(version.created / 1000, timezone.utc)
        created = moment.isoformat(timespec="seconds")
    return {
        "version": version.number,
        "state": version.state,
        "aliases": aliases,
        "verdict": version.tags.get(VERDICT),
        "failed": version.tags.get(FAILED) or None,
        "accuracy": tag_number(version.tags, ACCURACY),
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
    accuracy, latency = version["accuracy"], version["latency_ms"]
    return [
        str(version["version"]),
        escape(", ".join(version["aliases"]) or version["state"]),
        _NONE if accuracy is None else f"{accuracy:.2%}",
        _NONE if latency is None else format_milliseconds(latency),
        escape(version["target"] or _NONE),
        escape((version["data"] or _NONE)[:8]),
        escape(version["run"] or _NONE),
    ]
