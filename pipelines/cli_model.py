"""Commands on single files: placeholders are not kept here, each command calls one function of the library."""

from __future__ import annotations

import typer


def register(app: typer.Typer) -> None:
    """Add the commands to the main app."""
