"""Show how far an engine build is, on a terminal's stderr.

Elsewhere nothing, so that logs stay readable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, TaskID


@contextmanager
def build_progress(console: Console | None = None) -> Iterator[Callable[[str, int, int], None]]:
    """Show a bar for each phase of a build; the bars disappear at its end.

    Yields the ``progress`` argument of ``build_engine``.

    Args:
        console: Where to show them. Default: stderr.
    """
    shown = console or Console(stderr=True)
    with Progress(console=shown, transient=True, disable=not shown.is_terminal) as bars:
        tasks: dict[str, TaskID] = {}

        def update(phase: str, done: int, total: int) -> None:
            if phase not in tasks:
                tasks[phase] = bars.add_task(escape(phase))
            bars.update(tasks[phase], completed=done, total=total)

        yield update
