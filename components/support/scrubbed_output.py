"""Standard output and standard error without secrets.

Printed text of libraries ends up in logs that are kept.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

from qatline.components.support.credentials import scrub


class ScrubbedStream:
    """A text stream that masks secrets in each text that is written.

    All other attributes are those of the stream.

    Args:
        stream: The stream to write to.
        clean: Returns a text without its secrets.
    """

    def __init__(self, stream: Any, clean: Callable[[str], str] = scrub) -> None:
        self._stream = stream
        self._clean = clean

    def write(self, text: str) -> int:
        """Write ``text`` without its secrets."""
        self._stream.write(self._clean(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write each line without its secrets."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def scrub_output(stdout: Callable[[str], str] = scrub) -> None:
    """Put a ``ScrubbedStream`` in front of this process's stdout and stderr.

    A second call does nothing.

    Args:
        stdout: Returns a text for stdout without its secrets; ``mask_values`` where stdout is read
            by programs.
    """
    for name, clean in (("stdout", stdout), ("stderr", scrub)):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, ScrubbedStream):
            setattr(sys, name, ScrubbedStream(stream, clean))
