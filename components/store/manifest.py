"""Manifest of a finished directory and its verification."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qat_lib.errors import StorageError
from qat_lib.files.text_files import read_json
from qat_lib.support.digests import sha256_of, sha256_of_json
from qatline.components.store.meaning import meaning_digest

MANIFEST_NAME = "manifest.json"
_VERSION = 2


@dataclass(frozen=True, kw_only=True)
class FileEntry:
    """Size of a file in bytes, SHA-256 of its bytes, and SHA-256 of its meaning."""

    sha256: str
    size: int
    meaning: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        content = {"sha256": self.sha256, "size": self.size}
        return content if self.meaning is None else {**content, "meaning": self.meaning}


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Content of a finished directory and the step that wrote it.

    ``files`` maps a relative POSIX path to its entry. ``metrics`` are the step's metrics,
    ``settings`` its config sections and ``seconds`` its run time; a reused step reports them
    without execution.
    """

    files: Mapping[str, FileEntry]
    step: str = ""
    key: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def digest(self) -> str:
        """SHA-256 of the names and meanings of all files, without metrics, settings and times."""
        lines = (
            f"{name}\0{entry.meaning or entry.sha256}\n"
            for name, entry in sorted(self.files.items())
        )
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form; ``from_dict`` reads it back."""
        content = {
            "version": _VERSION,
            "step": self.step,
            "key": self.key,
            "digest": self.digest,
            "seconds": self.seconds,
            "metrics": dict(self.metrics),
            "settings": dict(self.settings),
            "files": {name: entry.to_dict() for name, entry in sorted(self.files.items())},
        }
        # The seal covers metrics and settings, which the digest of the files ignores.
        return {**content, "seal": sha256_of_json(content)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Manifest:
        """Read the JSON form.

        Raises:
            StorageError: it has another version, is incomplete, or was modified after it was
                written.
        """
        try:
            if data["version"] != _VERSION:
                raise StorageError(
                    f"expected a manifest of version {_VERSION}, received {data['version']}"
                )
            if data["seal"] != sha256_of_json(
                {key: value for key, value in data.items() if key != "seal"}
            ):
                raise StorageError(
                    "the manifest does not agree with its own seal: it was changed afterwards"
                )
            manifest = cls(
                files={name: FileEntry(**entry) for name, entry in data["files"].items()},
                step=data["step"],
                key=data["key"],
                metrics=dict(data["metrics"]),
                settings=dict(data.get("settings", {})),
                seconds=float(data["seconds"]),
            )
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise StorageError(f"the manifest is incomplete: {error!r}") from error
        return manifest


def describe(
    directory: Path,
    *,
    step: str = "",
    key: str = "",
    metrics: Mapping[str, float] | None = None,
    settings: Mapping[str, Any] | None = None,
    seconds: float = 0.0,
) -> Manifest:
    """Hash every file below ``directory`` and return its manifest.

    Raises:
        StorageError: an entry is not a plain file, or cannot be read.
    """
    files = {}
    for path in _plain_files(directory):
        size, digest = _measure(path)
        name = path.relative_to(directory).as_posix()
        files[name] = FileEntry(sha256=digest, size=size, meaning=_meaning(path))
    return Manifest(
        files=files,
        step=step,
        key=key,
        metrics=dict(metrics or {}),
        settings=dict(settings or {}),
        seconds=seconds,
    )


def read_step_manifest(directory: Path) -> Manifest:
    """Read ``directory/manifest.json`` without verifying the files.

    Raises:
        StorageError: it is missing because the step did not finish, or it is damaged.
    """
    path = directory / MANIFEST_NAME
    if not path.exists():
        raise StorageError(
            f"{directory} is not finished: expected {MANIFEST_NAME} in it, found none. "
            "Run the step that writes it again."
        )
    try:
        data = read_json(path, what="the manifest of a step", error=StorageError)
    except StorageError as error:
        raise StorageError(f"{error} Run the step that writes it again.") from error
    if not isinstance(data, dict):
        raise StorageError(f"{path}: expected a JSON object, received {type(data).__name__}")
    return Manifest.from_dict(data)


def verify_directory(directory: Path, *, contents: bool = True) -> Manifest:
    """Check that ``directory`` is finished and complete, and return its manifest.

    Args:
        directory: the published directory.
        contents: whether to hash every file. False compares names and sizes only, which detects
            missing and truncated files, but not modified ones.

    Raises:
        StorageError: the manifest is missing, or a file is missing, modified or unexpected; the
            message names the first one.
    """
    manifest = read_step_manifest(directory)
    found = {path.relative_to(directory).as_posix(): path for path in _plain_files(directory)}
    if added := sorted(set(found) - set(manifest.files)):
        raise StorageError(f"{directory} is not whole: {added[0]} was added after it was written")
    for name, entry in manifest.files.items():
        if name not in found:
            raise StorageError(f"{directory} is not whole: {name} is missing")
        _check(directory, name, entry, contents=contents)
    return manifest


def _check(directory: Path, name: str, entry: FileEntry, *, contents: bool) -> None:
    path = directory / name
    try:
        size = path.stat().st_size
        digest = _measure(path)[1] if contents and size == entry.size else entry.sha256
    except OSError as error:
        raise StorageError(
            f"{directory} is not whole: {name} can't be read ({error.strerror})"
        ) from error
    if size != entry.size:
        raise StorageError(
            f"{directory} is not whole: {name} has {size} bytes, expected {entry.size}"
        )
    if digest != entry.sha256:
        raise StorageError(
            f"{directory} is not whole: the content of {name} changed after it was written"
        )


def _plain_files(directory: Path) -> Iterator[Path]:
    for root, folders, names in os.walk(directory):
        folders.sort()
        for name in sorted((*folders, *names)):
            path = Path(root, name)
            if path.is_symlink() or not (path.is_file() or path.is_dir()):
                raise StorageError(f"{path} is not a plain file: a step hands on plain files only")
        yield from (
            Path(root, name)
            for name in sorted(names)
            if Path(root, name) != directory / MANIFEST_NAME
        )


def _meaning(path: Path) -> str | None:
    try:
        return meaning_digest(path)
    except OSError as error:
        raise StorageError(f"{path} can't be read: {error.strerror}") from error


def _measure(path: Path) -> tuple[int, str]:
    with path.open("rb") as stream:
        digest = sha256_of(stream)
        return stream.tell(), digest
