"""Published folders: complete, and verified by their readers.

The files are stored first, and last ``published.json`` with the SHA-256 and size of each. Readers take
only the listed files and verify them: partial or changed folders are detected.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from qat_lib.errors import StorageError
from qat_lib.files.text_files import read_json
from qat_lib.files.whole_files import folder_beside
from qat_lib.support.digests import sha256_of_file
from qatline.components.storage.archives import safe_name
from qatline.components.storage.storage import open_storage
from qatline.components.support.disk_errors import as_storage_error

LISTING = "published.json"
_FORMAT = 1
_THREADS = 8

Told = Callable[[int, int], None]


def publish_folder(folder: Path, location: str, *, told: Told = lambda _done, _total: None) -> int:
    """Store all files of a folder, and last the listing that makes them valid.

    Args:
        folder: the folder; links to files are stored as files.
        location: ``s3://bucket/folder`` or a path. An earlier publication there becomes invalid at
            the start and is replaced.
        told: receives the number of stored files and of all files.

    Returns:
        Number of files.

    Raises:
        StorageError: the folder is missing or empty, or its files can't be stored.
    """
    names = [
        path.relative_to(folder).as_posix()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path != folder / LISTING
    ]
    if not names:
        raise StorageError(f"Expected a folder with files to publish. Received: {folder}.")
    storage, base = open_storage(location), location.rstrip("/")
    # Readers take only listed files: without a listing they see none, instead of old and new ones.
    storage.remove(f"{base}/{LISTING}")
    files = {}
    with ThreadPoolExecutor(max_workers=_THREADS) as pool:
        stored = pool.map(lambda name: storage.put(folder / name, f"{base}/{name}"), names)
        try:
            for done, (name, _) in enumerate(zip(names, stored, strict=True), start=1):
                path = folder / name
                files[name] = {"sha256": sha256_of_file(path), "bytes": path.stat().st_size}
                told(done, len(names))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    with tempfile.TemporaryDirectory() as place:
        listing = Path(place) / LISTING
        text = json.dumps({"format": _FORMAT, "files": files}, indent=1, sort_keys=True)
        listing.write_text(text + "\n", encoding="utf-8")
        storage.put(listing, f"{base}/{LISTING}")
    return len(names)


def fetch_published(location: str, folder: Path) -> None:
    """Copy a published folder into a new local one, and verify every file.

    Args:
        location: ``s3://bucket/folder`` or a path.
        folder: the new local folder.

    Raises:
        StorageError: nothing is published there, or a file differs from its SHA-256.
    """
    storage, base = open_storage(location), location.rstrip("/")
    try:
        with folder_beside(folder) as beside:
            listing = beside / LISTING
            if storage.describe(f"{base}/{LISTING}") is None:
                raise StorageError(
                    f"Expected a published folder with {LISTING}, which is stored last. Received: "
                    f"{location}. Publish it (again): qatline publish."
                )
            storage.get(f"{base}/{LISTING}", listing)
            for name, digest in _listed(listing, location).items():
                # The listing comes from elsewhere; its names must not lead out of the folder.
                target = beside / safe_name(name)
                target.parent.mkdir(parents=True, exist_ok=True)
                storage.get(f"{base}/{name}", target)
                if sha256_of_file(target) != digest:
                    raise StorageError(
                        f"{base}/{name} differs from its SHA-256 in {LISTING}: it is damaged, or "
                        "it is published again right now. Fetch it again, or publish it again."
                    )
            listing.unlink()
            beside.rename(folder)
    except OSError as error:
        raise as_storage_error(error, folder) from error


def _listed(listing: Path, location: str) -> dict[str, str]:
    """Return SHA-256 by name of a listing's files."""
    content = read_json(listing, what="a listing", error=StorageError)
    try:
        if content["format"] != _FORMAT:
            raise ValueError(f"format {content['format']!r}")
        return {
            str(safe_name(name)): str(each["sha256"]) for name, each in content["files"].items()
        }
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise StorageError(
            f"{location}/{LISTING} is damaged ({error}). Publish the folder again."
        ) from error
