"""Reader of a run's log by step, once or while it grows."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from qatline.pipelines.steps import step_of_task

POLL_SECONDS = 0.2

_COLOR = re.compile(r"\x1b\[[0-9;]*m")
# Header that kfp.local prints before a task. Lines of the task itself are indented.
_TASK = re.compile(r"^\S.* Executing task '([\w-]+)'$")
_RULE = re.compile(r"^-{20,}$")


@dataclass(kw_only=True)
class StepLines:
    """Assigns log lines to steps; lines must be in order."""

    step: str = ""

    def step_of(self, line: str) -> str:
        """Return a line's step; empty for lines of the launcher."""
        plain = _COLOR.sub("", line).rstrip()
        if (task := _TASK.match(plain)) is not None:
            self.step = step_of_task(task[1])
        elif _RULE.match(plain):
            self.step = ""
        return self.step


def read_lines(
    path: Path,
    *,
    step: str | None = None,
    goes_on: Callable[[], bool] = lambda: False,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[str]:
    """Yield log lines without line ends, including an unterminated last line.

    Args:
        path: the log; it may not exist yet.
        step: step of the requested lines; None for all lines.
        goes_on: whether the log may still grow. It is called before each read, so that the last
            lines are not missed.
        sleep: called between two reads, with seconds.
    """
    lines, rest, offset = StepLines(), b"", 0
    while True:
        # Before the read: lines written between the read and the end of the run would be lost.
        more = goes_on()
        data = _read_from(path, offset)
        offset += len(data)
        *whole, rest = (rest + data).split(b"\n")
        if not more and rest:
            whole.append(rest)
        for raw in whole:
            line = raw.decode(errors="replace")
            if lines.step_of(line) == step or step is None:
                yield line
        if not more:
            return
        sleep(POLL_SECONDS)


def _read_from(path: Path, offset: int) -> bytes:
    if not path.exists():
        return b""
    with path.open("rb") as stream:
        stream.seek(offset)
        return stream.read()
