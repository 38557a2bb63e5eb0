"""Copies of a training's checkpoints in the object store, where they outlive the pod.

A checkpoint is one file, replaced by a rename. The store replaces its copy,
one object, atomically. The next attempt therefore finds the last completely stored checkpoint.
"""

from __future__ import annotations

import logging
import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from qat_lib.errors import StorageError
from qatline.components.storage.archives import safe_name
from qatline.components.storage.storage import Storage, open_storage

_PAUSE = 5.0  # seconds between two scans

_log = logging.getLogger(__name__)


@contextmanager
def mirrored_checkpoints(
    folder: Path, location: str, *, storage: Storage | None = None, pause: float = _PAUSE
) -> Iterator[None]:
    """Fetch a folder's files from a storage, and mirror changes to it within the block.

    The copies are removed if the block succeeds. Failures of the storage are logged and ignored.

    Args:
        folder: a missing or empty folder.
        location: a path or ``s3://bucket/key``.
        storage: the storage of the location by default.
        pause: seconds between two scans of the folder.
    """
    mirror = _Mirror(folder, location, storage or open_storage(location))
    mirror.fetch()
    over = threading.Event()

    def follow() -> None:
        while not over.wait(pause):
            mirror.store()

    thread = threading.Thread(target=follow, name="checkpoint-mirror", daemon=True)
    thread.start()
    succeeded = False
    try:
        yield
        succeeded = True
    finally:
        # The thread must not write after this: it could restore a removed copy.
        over.set()
        thread.join()
        if succeeded:
            mirror.remove()
        else:
            mirror.store()


class _Mirror:
    def __init__(self, folder: Path, location: str, storage: Storage) -> None:
        self._folder, self._storage = folder, storage
        self._root = location.rstrip("/") + "/"
        self._stored: dict[str, tuple[int, int]] = {}

    def fetch(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        try:
            for file in self._storage.list(self._root):
                target = self._folder / safe_name(file.location[len(self._root) :])
                self._storage.get(file.location, target)
                self._stored[self._name(target)] = _version(target)
        except (StorageError, ValueError) as error:
            _log.warning("earlier checkpoints can't be fetched, training starts over: %s", error)
            return
        for name in self._stored:
            _log.info("found the checkpoint %s of an earlier attempt", name)

    def store(self) -> None:
        """Store the files changed since the last scan."""
        for path in self._files():
            name = self._name(path)
            try:
                self._store(path, name)
            except FileNotFoundError:  # removed meanwhile, for example by the training
                continue
            except OSError as error:
                _log.warning("the checkpoint %s can't be stored: %s", name, error)

    def remove(self) -> None:
        try:
            for file in self._storage.list(self._root):
                self._storage.remove(file.location)
        except StorageError as error:
            _log.warning("checkpoints are left in %s: %s", self._root, error)

    def _store(self, path: Path, name: str) -> None:
        with tempfile.TemporaryDirectory(dir=self._folder.parent) as place:
            # The training may replace the file during the upload: a hard link keeps this version.
            held = Path(place) / "held"
            os.link(path, held)
            version = _version(held)
            if self._stored.get(name) != version:
                self._storage.put(held, self._root + name)
                self._stored[name] = version

    def _files(self) -> Iterator[Path]:
        for path in sorted(self._folder.rglob("*")):
            if path.is_file() and not path.name.startswith("."):
                yield path

    def _name(self, path: Path) -> str:
        return path.relative_to(self._folder).as_posix()


def _version(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_ino, status.st_mtime_ns
