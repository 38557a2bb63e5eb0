"""Directories that steps hand on: written beside, fsynced, renamed; finished only when the manifest verifies.

A reader can meet a directory at any moment, even while its writer is killed. So a directory counts as
finished only if its ``manifest.json`` is there and agrees with what lies on disk. The manifest is the
last file to be written, and the directory gets its final name after that in one rename.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qat_lib.errors import StorageError

MANIFEST_NAME = "manifest.json"
_VERSION = 1
_CHUNK = 1 << 20


@dataclass(frozen=True, kw_only=True)
class FileEntry:
    """Size in bytes and SHA-256 of one file."""

    sha256: str
    size: int


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a finished directory holds, and which step made it.

    ``files`` maps a relative POSIX path to its entry. ``metrics`` are the step's numbers, ``settings`` the config
    sections it ran with and ``seconds`` its run time, so that a step which is reused can report them without running.
    """

    files: Mapping[str, FileEntry]
    step: str = ""
    key: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def digest(self) -> str:
        """SHA-256 over the names and contents of all files; metrics, settings and times don't enter."""
        lines = (f"{name}\0{entry.sha256}\0{entry.size}\n" for name, entry in sorted(self.files.items()))
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form; ``from_dict`` reads it back."""
        files = {name: {"sha256": entry.sha256, "size": entry.size} for name, entry in sorted(self.files.items())}
        return {
            "version": _VERSION,
            "step": self.step,
            "key": self.key,
            "digest": self.digest,
            "seconds": self.seconds,
            "metrics": dict(self.metrics),
            "settings": dict(self.settings),
            "files": files,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Manifest:
        """Read the JSON form.

        Raises:
            StorageError: it is of another version, incomplete, or does not agree with its own digest.
        """
        try:
            if data["version"] != _VERSION:
                raise StorageError(f"expected a manifest of version {_VERSION}, received {data['version']}")
            manifest = cls(
                files={name: FileEntry(sha256=e["sha256"], size=int(e["size"])) for name, e in data["files"].items()},
                step=data["step"],
                key=data["key"],
                metrics=dict(data["metrics"]),
                settings=dict(data.get("settings", {})),
                seconds=float(data["seconds"]),
            )
            if manifest.digest != data["digest"]:
                raise StorageError("the manifest does not agree with its own digest: it was changed afterwards")
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
    """Hash every file below ``directory`` and return the manifest that belongs to it.

    Raises:
        StorageError: something in it is not a plain file, or can't be read.
    """
    files = {}
    for path in _plain_files(directory):
        size, digest = _measure(path)
        files[path.relative_to(directory).as_posix()] = FileEntry(sha256=digest, size=size)
    return Manifest(
        files=files, step=step, key=key, metrics=dict(metrics or {}), settings=dict(settings or {}), seconds=seconds
    )


def publish(tmp: Path, final: Path, manifest: Manifest) -> bool:
    """Give the complete directory ``tmp`` its final name, atomically and durably.

    Returns:
        True when ``final`` is now what ``tmp`` was. False when another process had already published a
        finished directory there: ``tmp`` is then removed and theirs stands.

    Raises:
        StorageError: the disk is full, or ``final`` is taken by something that is no finished directory.
    """
    try:
        _write_manifest(tmp, manifest)
        _sync_tree(tmp)
        final.parent.mkdir(parents=True, exist_ok=True)
        if not _rename(tmp, final):
            shutil.rmtree(tmp, ignore_errors=True)
            return False
        _sync(final.parent)
    except OSError as error:
        shutil.rmtree(tmp, ignore_errors=True)
        raise as_storage_error(error, final) from error
    return True


def read_manifest(directory: Path) -> Manifest:
    """Read ``directory/manifest.json`` without looking at the files it names.

    Raises:
        StorageError: there is none (the step that writes this directory did not finish), or it is damaged.
    """
    path = directory / MANIFEST_NAME
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise StorageError(
            f"{directory} is not finished: expected {MANIFEST_NAME} in it, found none. "
            "Run the step that writes it again."
        ) from error
    except (OSError, ValueError) as error:
        raise StorageError(f"{path} can't be read: {error}. Run the step that writes it again.") from error
    if not isinstance(data, dict):
        raise StorageError(f"{path}: expected a JSON object, received {type(data).__name__}")
    return Manifest.from_dict(data)


def verify(directory: Path, *, contents: bool = True) -> Manifest:
    """Check that ``directory`` is finished and whole, and return its manifest.

    Args:
        directory: the published directory.
        contents: hash every file. With False only names and sizes are compared, which finds what is
            missing or cut short, but not what was changed in place.

    Raises:
        StorageError: no manifest, a missing file, or one that differs; the message names the first.
    """
    manifest = read_manifest(directory)
    for name, entry in manifest.files.items():
        path = directory / name
        try:
            size = path.stat().st_size
            digest = _measure(path)[1] if contents and size == entry.size else entry.sha256
        except OSError as error:
            raise StorageError(f"{directory} is not whole: {name} can't be read ({error.strerror})") from error
        if size != entry.size:
            raise StorageError(f"{directory} is not whole: {name} has {size} bytes, expected {entry.size}")
        if digest != entry.sha256:
            raise StorageError(f"{directory} is not whole: the content of {name} changed after it was written")
    return manifest


def materialize(source: Path, target: Path) -> None:
    """Make ``target`` a copy of the published directory ``source``: hard links where the file system allows.

    ``target`` may be missing, empty, or an older copy, which is replaced. It appears in one rename.

    Raises:
        StorageError: the disk is full or the place can't be written.
    """
    beside = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(beside, ignore_errors=True)
        shutil.copytree(source, beside, copy_function=_link_or_copy)
        if target.exists():
            shutil.rmtree(target)
        beside.rename(target)
    except (OSError, shutil.Error) as error:
        shutil.rmtree(beside, ignore_errors=True)
        raise as_storage_error(error, target) from error


def as_storage_error(error: BaseException, place: Path) -> StorageError:
    """Translate an error of the file system; a full disk is told as such, with what is left."""
    if isinstance(error, StorageError):
        return error
    if not is_disk_full(error):
        return StorageError(f"{place} can't be written: {error}")
    free = ""
    with suppress(OSError):
        usage = shutil.disk_usage(next(parent for parent in (place, *place.parents) if parent.exists()))
        free = f" ({usage.free / 2**20:.0f} MiB free of {usage.total / 2**20:.0f})"
    return StorageError(
        f"the disk is full: {place} can't be written{free}. Free some space, or choose another place for the runs; "
        "what was finished before is kept, so --resume goes on from there."
    )


def is_disk_full(error: BaseException) -> bool:
    """Tell whether ``error``, or one that it came from, says that no space, quota or file size is left."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        if isinstance(current, OSError) and current.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            return True
        # HDF5, TensorFlow and ONNX report it in their own exceptions, by text only.
        if "No space left on device" in str(current) or "File too large" in str(current):
            return True
        current = current.__cause__ or current.__context__
    return False


def _rename(tmp: Path, final: Path) -> bool:
    """Rename; False when a finished directory is there already. An empty or unfinished one gives way."""
    for _ in range(3):
        try:
            tmp.rename(final)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
        else:
            return True
        try:
            verify(final)
        except StorageError:
            # Left by a tool that writes in place or damaged later: move it away in one step, then try again.
            aside = final.with_name(f".{final.name}.{os.getpid()}.bad")
            with suppress(FileNotFoundError):
                final.rename(aside)
            shutil.rmtree(aside, ignore_errors=True)
        else:
            return False
    raise StorageError(f"{final} can't be published: another process keeps changing it")


def _plain_files(directory: Path) -> Iterator[Path]:
    for root, folders, names in os.walk(directory):
        folders.sort()
        for name in sorted(names):
            path = Path(root, name)
            if path == directory / MANIFEST_NAME:
                continue
            if path.is_symlink() or not path.is_file():
                raise StorageError(f"{path} is not a plain file: a step hands on plain files only")
            yield path


def _measure(path: Path) -> tuple[int, str]:
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
            size += len(chunk)
    return size, digest.hexdigest()


def _write_manifest(directory: Path, manifest: Manifest) -> None:
    text = json.dumps(manifest.to_dict(), indent=1, allow_nan=False)
    (directory / MANIFEST_NAME).write_text(text + "\n", encoding="utf-8")


def _sync_tree(directory: Path) -> None:
    for root, _, names in os.walk(directory):
        for name in names:
            _sync(Path(root, name))
        _sync(Path(root))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EACCES):
            raise
        shutil.copy2(source, target)
