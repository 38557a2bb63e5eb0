"""Figures of benchmarks as Markdown: tables, commands, date and machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"


def load(name: str) -> dict[str, Any]:
    """Return the figures of one benchmark."""
    content: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return content


def measured(figures: dict[str, Any], *libraries: str) -> str:
    """Return a sentence with date, machine and versions of a measurement."""
    about = figures["measured"]
    versions = ", ".join(f"{library} {about['versions'][library]}" for library in libraries)
    cores = f"{about['cores']} core{'' if about['cores'] == 1 else 's'}"
    where = f"Measured {about['day']} on {cores} of an {about['processor']}"
    return f"{where}; {versions}.\n" if versions else f"{where}.\n"


def table(head: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table, numbers to the right."""
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)]) + "\n"


def block(command: str) -> str:
    """Return a command as a block."""
    return f"```text\n{command}\n```\n"
