"""Write docs/reference/cli.md from the commands' own help."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from qatline.pipelines.cli.main import app

TARGET = Path(__file__).parents[1] / "reference" / "cli.md"
HEAD = """# Command line

<!-- Written by docs/tools/cli_reference.py from the commands' help. -->

`qatline COMMAND --help` prints the same. All commands accept `--debug` for tracebacks.

| Exit code | Meaning |
|---|---|
| 0 | success |
| 1 | the work failed, or a check found an error |
| 2 | an option, a config or a file is wrong |
| 3 | the gate rejected the engine (`run`, `resume`, `cluster wait`); 0 with `--accept-rejected` |
| 124 | `cluster wait` reached its `--timeout` |
| 128 + n | ended by signal n |
"""


def render() -> str:
    """Return the page."""
    parts = [HEAD]
    for path, command in _commands(typer.main.get_command(app), "qatline"):
        parts.append(f"## {path}\n\n{_plain(command.help)}\n")
        rows = [_row(parameter) for parameter in command.params if not _is_common(parameter)]
        if rows:
            parts.append("| | |\n|---|---|\n" + "\n".join(rows) + "\n")
    return "\n".join(parts)


def _commands(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    for name, child in getattr(command, "commands", {}).items():
        if not child.hidden:
            if not hasattr(child, "commands"):
                yield f"{path} {name}", child
            yield from _commands(child, f"{path} {name}")


def _is_common(parameter: Any) -> bool:
    return getattr(parameter, "hidden", False) or parameter.name in ("help", "debug")


def _row(parameter: Any) -> str:
    names = [*parameter.opts, *parameter.secondary_opts]
    if parameter.param_type_name == "argument":
        names = [parameter.metavar or parameter.name.upper()]
    text = _plain(getattr(parameter, "help", None))
    default = parameter.default
    if isinstance(default, (int, float, str)) and not isinstance(default, bool) and default != "":
        text += f" Default: `{default}`."
    return f"| {', '.join(f'`{name}`' for name in names)} | {text} |"


def _plain(text: str | None) -> str:
    """Return a help text in Markdown, in one line per paragraph."""
    paragraphs = re.split(r"\n\s*\n", (text or "").replace("\b", "").replace("|", "\\|").strip())
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


if __name__ == "__main__":
    TARGET.write_text(render(), encoding="utf-8")
    sys.stdout.write(f"{TARGET}\n")
