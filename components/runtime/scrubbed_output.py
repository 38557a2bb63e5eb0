"""Standard output and standard error without secrets.

What libraries print ends up in logs that are kept.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from components.runtime.credentials import scrub


class ScrubbedStream:
    """A text stream that masks secrets in each text that is written.

    Everything else is the stream's own.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write ``text`` without its secrets."""
        self._stream.write(scrub(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write each line without its secrets."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def scrub_output() -> None:
    """Put a ``ScrubbedStream`` in front of this process's stdout and stderr.

    A second call does nothing.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, ScrubbedStream):
            setattr(sys, name, ScrubbedStream(stream))
