"""Digest of a file's meaning, independent of the time and process of writing.

Identical executions of a step write different bytes: Keras stores the time of saving and memory
addresses of shared objects in its archives, and histories contain run times. Subsequent steps must
not run again because of them. Only values known to be meaningless are ignored; every other
difference counts.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from qat_lib.support.digests import sha256_of

_LARGEST_JSON = 16 << 20  # bytes
_MOST_MEMBERS = 10_000
_TIMES = frozenset(
    {
        *("seconds", "conversion_seconds", "build_seconds", "created", "date_saved"),
        "images_per_second_per_worker",
    }
)
_SHARED = "shared_object_id"


def meaning_digest(path: Path) -> str | None:
    """Return the SHA-256 of a file's meaning, or None if only its bytes define it.

    JSON files are digested without run times and dates, ``.keras`` archives by the name and meaning
    of each member. Nothing is loaded or unpacked: a compressed or oversized archive is digested as
    bytes.

    Raises:
        OSError: the file cannot be read.
    """
    reader = _READERS.get(path.suffix)
    return reader(path) if reader else None


def _json_digest(path: Path) -> str | None:
    if path.stat().st_size > _LARGEST_JSON:
        return None
    text = _canonical(path.read_bytes())
    return None if text is None else hashlib.sha256(text).hexdigest()


def _archive_digest(path: Path) -> str | None:
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(path) as archive:
            members = sorted(archive.infolist(), key=lambda member: member.filename)
            if not _is_plain(members):
                return None
            for member in members:
                digest.update(f"{member.filename}\0{_member_digest(archive, member)}\n".encode())
    # Damaged, or a format unsupported by zipfile.
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError):
        return None
    return digest.hexdigest()


def _is_plain(members: list[zipfile.ZipInfo]) -> bool:
    """Return whether all members are uncompressed and have unique names."""
    stored = all(member.compress_type == zipfile.ZIP_STORED for member in members)
    return (
        stored
        and 0 < len(members) <= _MOST_MEMBERS
        and len({member.filename for member in members}) == len(members)
    )


def _member_digest(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> str:
    if member.filename.endswith(".json") and member.file_size <= _LARGEST_JSON:
        content = archive.read(member)
        return hashlib.sha256(_canonical(content) or content).hexdigest()
    with archive.open(member) as stream:
        return sha256_of(stream)


def _canonical(content: bytes) -> bytes | None:
    """Return JSON without times, with shared objects numbered in order of appearance."""
    numbers: dict[Any, int] = {}

    def without(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        kept = {key: value for key, value in pairs if key not in _TIMES}
        if isinstance(kept.get(_SHARED), int):
            kept[_SHARED] = numbers.setdefault(kept[_SHARED], len(numbers))
        return kept

    try:
        return json.dumps(json.loads(content, object_pairs_hook=without)).encode()
    except (ValueError, RecursionError):
        return None


_READERS: Mapping[str, Callable[[Path], str | None]] = {
    ".json": _json_digest,
    ".keras": _archive_digest,
}
