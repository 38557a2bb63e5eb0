"""What every storage has in common: stored files, what a storage does, and files that appear whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, kw_only=True)
class StoredFile:
    """One stored file: its location, its size in bytes, and a tag that changes with its content."""

    location: str
    size: int
    tag: str


class Storage(Protocol):
    """A place for files. A location is a path or ``s3://bucket/key``. Every method raises StorageError."""

    def describe(self, location: str) -> StoredFile | None:
        """Return what is stored there, or None."""

    def get(self, location: str, target: Path) -> StoredFile:
        """Copy to the local file ``target``, which appears whole or not at all."""

    def put(self, source: Path, location: str) -> StoredFile:
        """Store the local file ``source``, replacing what was there."""

    def list(self, location: str) -> list[StoredFile]:
        """Return what is stored below a location, sorted by location."""


@contextmanager
def written_beside(target: Path) -> Iterator[Path]:
    """Yield a path beside ``target`` to write to, which becomes ``target`` in one rename when the body succeeds."""
    target.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent)
    os.close(descriptor)
    unfinished = Path(name)
    try:
        yield unfinished
        with unfinished.open("rb") as stream:
            os.fsync(stream.fileno())
        unfinished.replace(target)
    finally:
        unfinished.unlink(missing_ok=True)
