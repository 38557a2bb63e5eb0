"""Storage of files in a folder or in S3, behind one small protocol.

Exceptions of the libraries are translated into StorageError.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

from qat_lib.errors import StorageError
from qat_lib.files.whole_files import written_beside
from qat_lib.support.digests import sha256_of
from qatline.components.storage.stored_file import Storage, StoredFile
from qatline.components.support.disk_errors import as_storage_error

__all__ = [
    "CACHE_VARIABLE",
    "LocalStorage",
    "Storage",
    "StoredFile",
    "cache_root",
    "existing",
    "fetch_cached",
    "local_path",
    "open_storage",
]

CACHE_VARIABLE = "QATLINE_CACHE"


class LocalStorage:
    """Files in local folders, tagged by the SHA-256 of their content."""

    def describe(self, location: str) -> StoredFile | None:
        """Return a file's size and SHA-256, or None if it is missing."""
        path = Path(location)
        if not path.is_file():
            return None
        with _translated(path), path.open("rb") as stream:
            digest = sha256_of(stream)
            return StoredFile(location=location, size=stream.tell(), tag=digest)

    def get(self, location: str, target: Path) -> StoredFile:
        """Copy a file to ``target`` atomically."""
        return self._copy(Path(location), target, location)

    def get_version(self, stored: StoredFile, target: Path) -> StoredFile:
        """Copy a file described before; raise if it changed since."""
        found = self.get(stored.location, target)
        if (found.tag, found.size) != (stored.tag, stored.size):
            target.unlink(missing_ok=True)
            raise StorageError(f"{stored.location} changed while it was fetched: run again")
        return found

    def missing(self, location: str) -> str:
        """Return the reason for a missing file, for a message."""
        return f"{location} does not exist"

    def put(self, source: Path, location: str) -> StoredFile:
        """Copy a file to its location atomically."""
        return self._copy(source, Path(location), location)

    def list(self, location: str, *, most: int | None = None) -> list[StoredFile]:
        """Return every file below a folder, or the first ones."""
        found = map(self.describe, map(str, sorted(Path(location).rglob("*"))))
        return [*islice((file for file in found if file is not None), most)]

    def remove(self, location: str) -> None:
        """Delete a file."""
        path = Path(location)
        with _translated(path):
            path.unlink(missing_ok=True)

    def _copy(self, source: Path, target: Path, location: str) -> StoredFile:
        before = self.describe(str(source))
        if before is None:
            raise StorageError(f"{source} is missing: expected a file")
        with _translated(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            with written_beside(target) as unfinished:
                shutil.copyfile(source, unfinished)
        return StoredFile(location=location, size=before.size, tag=before.tag)


def open_storage(location: str) -> Storage:
    """Return the storage of a location.

    Raises:
        StorageError: the scheme is neither ``s3://`` nor a plain path, or boto3 is not installed.
    """
    if location.startswith("s3://"):
        from qatline.components.storage.s3 import S3Storage, s3_client

        return S3Storage(s3_client())
    if "://" in location:
        raise StorageError(f"{location}: expected a path or s3://bucket/key")
    return LocalStorage()


def local_path(location: str, *, key: str = "data.path") -> Path:
    """Return the local path of a file; fetch a remote one first.

    Args:
        location: a path or ``s3://bucket/key``.
        key: name of the setting, for messages.

    Raises:
        StorageError: a remote file does not exist or cannot be fetched.
    """
    if location.startswith("s3://"):
        return fetch_cached(location, key=key)
    return Path(location).expanduser()


def fetch_cached(location: str, storage: Storage | None = None, *, key: str = "data.path") -> Path:
    """Return a local copy of a remote file; reuse an unchanged copy.

    Copies are stored in ``QATLINE_CACHE`` (default: ``~/.cache/qatline``), named by tag and size.
    Changed objects are fetched again, and concurrent fetches are safe.

    Raises:
        StorageError: the file does not exist or cannot be fetched.
    """
    storage = storage or open_storage(location)
    stored = existing(location, storage, key=key)
    place = hashlib.sha256(f"{location}\0{stored.tag}\0{stored.size}".encode()).hexdigest()[:32]
    name = Path(location).name
    target = cache_root() / "objects" / place / (name if name.strip(".") else "object")
    if not (target.is_file() and target.stat().st_size == stored.size):
        fetched = storage.get(location, target)
        if (fetched.tag, fetched.size) != (stored.tag, stored.size):
            target.unlink(missing_ok=True)
            raise StorageError(f"{location} changed while it was fetched: run again")
    return target


def existing(location: str, storage: Storage, *, key: str = "data.path") -> StoredFile:
    """Describe a required file.

    Raises:
        StorageError: it does not exist, or the store is unusable.
    """
    stored = storage.describe(location)
    if stored is None:
        raise StorageError(f"{storage.missing(location)}: correct {key}")
    return stored


def cache_root() -> Path:
    """Return the folder of fetched files."""
    named = os.environ.get(CACHE_VARIABLE)
    return (
        Path(named)
        if named
        else Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "qatline"
    )


@contextmanager
def _translated(place: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise as_storage_error(error, place) from error
