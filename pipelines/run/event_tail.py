"""Reader of a growing file of JSON lines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(kw_only=True)
class EventTail:
    """Reads the lines appended since the last call, complete lines only."""

    path: Path
    offset: int = 0
    rest: bytes = field(default=b"", init=False)

    @classmethod
    def from_end(cls, path: Path) -> EventTail:
        """Start after the events of earlier attempts."""
        return cls(path=path, offset=file_size(path))

    def read(self) -> Iterator[dict[str, Any]]:
        """Yield new events; skip a partial line of a killed process."""
        if not self.path.exists():
            return
        with self.path.open("rb") as stream:
            stream.seek(self.offset)
            data = stream.read()
        self.offset += len(data)
        # The last line may be incomplete: keep it for the next call.
        *lines, self.rest = (self.rest + data).split(b"\n")
        for line in lines:
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if isinstance(event, dict):
                yield event


def file_size(path: Path) -> int:
    """Return a file's size in bytes, 0 if it is missing."""
    return path.stat().st_size if path.exists() else 0
