"""Follow a file of JSON lines that other processes append to."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(kw_only=True)
class EventTail:
    """Reads what was appended since the last look, whole lines only."""

    path: Path
    offset: int = 0
    rest: bytes = field(default=b"", init=False)

    @classmethod
    def from_end(cls, path: Path) -> EventTail:
        """Start after what an earlier attempt wrote."""
        return cls(path=path, offset=file_size(path))

    def read(self) -> Iterator[dict[str, Any]]:
        """Yield new events; skip a half-written line of a killed process."""
        if not self.path.exists():
            return
        with self.path.open("rb") as stream:
            stream.seek(self.offset)
            data = stream.read()
        self.offset += len(data)
        *lines, self.rest = (self.rest + data).split(b"\n")
        for line in lines:
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if isinstance(event, dict):
                yield event


def file_size(path: Path) -> int:
    """Return a file's size in bytes, 0 for one that is missing."""
    return path.stat().st_size if path.exists() else 0
