"""Stored files, and the interface of every storage."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

ARCHIVES = (".tar", ".tar.gz", ".tgz", ".zip")
"""How the name of an archive ends, which may stand for a folder."""


def is_archive(location: str) -> bool:
    """Whether a location is that of an archive, by its name."""
    return location.lower().endswith(ARCHIVES)


@dataclass(frozen=True, kw_only=True)
class StoredFile:
    """A stored file: location, size in bytes, and content tag."""

    location: str
    size: int
    tag: str


class Storage(Protocol):
    """A place for files.

    A location is a path or ``s3://bucket/key``. Every method raises StorageError.
    """

    def describe(self, location: str) -> StoredFile | None:
        """Return what is stored there, or None."""

    def get(self, location: str, target: Path) -> StoredFile:
        """Copy to the local file ``target`` atomically: whole or not at all."""

    def get_version(self, stored: StoredFile, target: Path) -> StoredFile:
        """Copy what was listed or described before; an error where it changed since."""

    def missing(self, location: str) -> str:
        """Return why nothing is stored there, for a message."""

    def put(self, source: Path, location: str) -> StoredFile:
        """Store the local file ``source``, replacing what was there."""

    def list(self, location: str) -> list[StoredFile]:
        """Return what is stored below a location, sorted by location."""

    def remove(self, location: str) -> None:
        """Remove a stored file; nothing happens where there is none."""
