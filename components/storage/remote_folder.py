"""Folders of files in S3 or in an archive, as local folders.

A folder in S3 consists of all objects with a common prefix. Local copies are stored in the cache
and named by a digest of their sources: changed objects use another folder.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from qat_lib.errors import StorageError
from qat_lib.files.whole_files import folder_beside
from qat_lib.support.locks import file_lock
from qatline.components.storage.archives import Wanted, safe_name, unpack_files
from qatline.components.storage.storage import cache_root, existing, fetch_cached, open_storage
from qatline.components.storage.stored_file import Storage, StoredFile, is_archive
from qatline.components.support.disk_errors import as_storage_error

_THREADS = 8

Told = Callable[[int, int], None]


def is_remote_folder(location: str) -> bool:
    """Return whether a folder must be fetched or unpacked before use."""
    return "://" in location or (is_archive(location) and not Path(location).is_dir())


def fetch_folder(
    location: str,
    wanted: Wanted,
    *,
    storage: Storage | None = None,
    told: Told = lambda _done, _total: None,
) -> Path:
    """Return a local copy of a folder in S3, or of an archive's files.

    Unchanged files of earlier fetches are reused, and interrupted fetches are continued. If an
    archive contains a single top folder, that folder is returned.

    Args:
        location: ``s3://bucket/folder``, or an archive in S3 or on this machine.
        wanted: returns whether to fetch a file, given its name.
        storage: the storage of the location by default.
        told: receives the number of available files and of all files.

    Raises:
        StorageError: nothing exists there, it cannot be fetched, or it changed meanwhile.
        DataError: an archive is damaged or unsafe.
    """
    storage = storage or open_storage(location)
    if is_archive(location):
        # The innermost folder that contains all files of an archive.
        folder = _unpacked(location, storage, wanted)
        while len(entries := list(folder.iterdir())) == 1 and entries[0].is_dir():
            folder = entries[0]
        return folder
    return _fetched(location, storage, wanted, told)


def folder_digest(location: str, storage: Storage | None = None) -> str | None:
    """Return a digest of a folder in S3, or of an archive; None if nothing exists."""
    storage = storage or open_storage(location)
    if is_archive(location):
        found = storage.describe(location)
        return None if found is None else f"{found.tag} {found.size}"
    listed = storage.list(_prefix(location))
    return _digest(location, listed) if listed else None


def _fetched(location: str, storage: Storage, wanted: Wanted, told: Told) -> Path:
    prefix = _prefix(location)
    files: dict[PurePosixPath, StoredFile] = {}
    for file in storage.list(prefix):
        name = file.location.removeprefix(prefix)
        if wanted(name):
            files[_below(location, name)] = file
    if not files:
        raise StorageError(
            f"{location} holds no file that is read here, or these credentials may not see it: "
            "correct data.path"
        )
    place = cache_root() / "folders" / _digest(location, list(files.values()))
    waiting = [name for name, file in files.items() if not _is_there(place / name, file.size)]
    done = len(files) - len(waiting)
    with ThreadPoolExecutor(max_workers=_THREADS) as pool:
        fetches = pool.map(lambda name: storage.get_version(files[name], place / name), waiting)
        try:
            for _ in fetches:
                done += 1
                told(done, len(files))
        except BaseException:
            # On the first error, pending downloads must not delay its report.
            pool.shutdown(cancel_futures=True)
            raise
    return place


def _unpacked(location: str, storage: Storage, wanted: Wanted) -> Path:
    stored = existing(location, storage)
    place = cache_root() / "folders" / _digest(location, [stored])
    with _locked(place):
        if not place.is_dir():
            archive = fetch_cached(location, storage) if "://" in location else Path(location)
            with folder_beside(place) as beside:
                if unpack_files(archive, beside, wanted) == 0:
                    raise StorageError(
                        f"{location} holds no file that is read here: correct data.path"
                    )
                # The rename marks a complete extraction: readers test only for the folder.
                beside.replace(place)
    return place


def _prefix(location: str) -> str:
    return location.rstrip("/") + "/"


def _below(location: str, name: str) -> PurePosixPath:
    try:
        return safe_name(name)
    except ValueError as error:
        raise StorageError(
            f"{location}: expected names of files below it, but {error}: remove that object"
        ) from error


def _is_there(path: Path, size: int) -> bool:
    return path.is_file() and path.stat().st_size == size


def _digest(location: str, files: Sequence[StoredFile]) -> str:
    digest = hashlib.sha256(location.encode())
    for file in files:
        digest.update(f"\0{file.location}\0{file.tag}\0{file.size}".encode())
    return digest.hexdigest()[:32]


@contextmanager
def _locked(place: Path) -> Iterator[None]:
    """Hold the lock of a folder in the cache, for its creation."""
    try:
        with file_lock(place.with_name(place.name + ".lock")):
            yield
    except StorageError:
        raise
    except OSError as error:
        raise as_storage_error(error, place) from error
