"""Standard output and standard error without secrets.

Libraries print to logs that are kept.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable
from typing import Any

from qatline.components.support.credentials import scrub


class ScrubbedStream:
    """A text stream that masks secrets in every written text.

    All other attributes are those of the underlying stream.

    Args:
        stream: the underlying stream.
        clean: returns a text without secrets.
    """

    def __init__(self, stream: Any, clean: Callable[[str], str] = scrub) -> None:
        self._stream = stream
        self._clean = clean

    def write(self, text: str) -> int:
        """Write ``text`` without secrets."""
        self._stream.write(self._clean(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write each line without secrets."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def scrub_output(stdout: Callable[[str], str] = scrub) -> None:
    """Wrap this process's stdout and stderr in a ``ScrubbedStream``; repeated calls have no effect.

    Args:
        stdout: masks a text for stdout; use ``mask_values`` if programs read stdout.
    """
    for name, clean in (("stdout", stdout), ("stderr", scrub)):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, ScrubbedStream):
            setattr(sys, name, ScrubbedStream(stream, clean))


def log_to_pod() -> None:
    """Log qatline's messages from INFO and libraries' from WARNING; mask secrets."""
    scrub_output()
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logging.getLogger("qatline").setLevel(logging.INFO)
