"""Stored files, and the interface of every storage."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

ARCHIVES = (".tar", ".tar.gz", ".tgz", ".zip")
"""Suffixes of archives; an archive can take the place of a folder."""


def is_archive(location: str) -> bool:
    """Return whether a location has the suffix of an archive."""
    return location.lower().endswith(ARCHIVES)


def split_pattern(location: str) -> tuple[str, str]:
    """Split ``folder/*.tfrecord`` into folder and pattern.

    The pattern is empty if the last part of the location has no ``*``, ``?`` or ``[``.
    """
    folder, _, name = location.rpartition("/")
    return (folder or ".", name) if any(mark in name for mark in "*?[") else (location, "")


@dataclass(frozen=True, kw_only=True)
class StoredFile:
    """A stored file: location, size in bytes, and content tag."""

    location: str
    size: int
    tag: str


class Storage(Protocol):
    """A store of files.

    A location is a path or ``s3://bucket/key``. Every method raises StorageError.
    """

    def describe(self, location: str) -> StoredFile | None:
        """Return the file at a location, or None."""

    def get(self, location: str, target: Path) -> StoredFile:
        """Copy to the local file ``target`` atomically."""

    def get_version(self, stored: StoredFile, target: Path) -> StoredFile:
        """Copy a file listed or described before; raise if it changed since."""

    def missing(self, location: str) -> str:
        """Return the reason for a missing file, for a message."""

    def put(self, source: Path, location: str) -> StoredFile:
        """Store the local file ``source``, replacing an existing one."""

    def list(self, location: str, *, most: int | None = None) -> list[StoredFile]:
        """Return the files below a location, sorted by location; all, or the first ones."""

    def remove(self, location: str) -> None:
        """Remove a stored file; missing ones are ignored."""
