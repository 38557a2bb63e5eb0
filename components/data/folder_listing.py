"""Listing of the images in a folder with one sub-folder per class.

Files and folders are identified by device and inode, so that links cannot multiply them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from qat_lib.errors import DataError
from qatline.components.data.images import SUFFIXES

MAX_DEPTH = 32
PART_NAMES: Mapping[str, str] = {
    "train": "train",
    "training": "train",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "test": "test",
    "testing": "test",
}
"""Part of the data set by the names that folders and tables use."""

Identity = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class FolderListing:
    """Images below a folder.

    Args:
        classes: names of the sub-folders in label order.
        images: path below the folder and label of each image, sorted by class, then by path.
        repeated: number of further names of listed files within the same class.
    """

    classes: tuple[str, ...]
    images: tuple[tuple[str, int], ...]
    repeated: int


def find_parts(root: Path, classes: Sequence[str] | None) -> dict[str, str]:
    """Return the sub-folder of each part of a folder that is split already, else nothing.

    Raises:
        DataError: two sub-folders are the same part, or none is for training.
    """
    if not root.is_dir():
        return {}
    found = _sub_folders(root)
    if not found or not set(found) <= set(PART_NAMES) or set(found) & set(classes or ()):
        return {}
    parts: dict[str, str] = {}
    for name in found:
        if (other := parts.setdefault(PART_NAMES[name], name)) != name:
            raise DataError(f"{root}: {other} and {name} are the same part. Keep one of them.")
    if "train" not in parts:
        raise DataError(f"{root}: expected a sub-folder train next to {', '.join(found)}")
    return parts


def list_images(
    root: Path,
    wanted: list[str] | None,
    *,
    part: str = "",
    among: Sequence[str] | None = None,
    most: int | None = None,
) -> FolderListing:
    """List images of the ``wanted`` classes, or of every sub-folder.

    Links to files and folders are followed. A file with several names is listed once.

    Args:
        root: folder that paths are relative to.
        wanted: names of the classes in label order; None for all sub-folders.
        part: sub-folder of ``root`` with the sub-folders of classes.
        among: names of the training part's classes; this part may lack some of them.
        most: number of images to list of each class; None for all.

    Raises:
        DataError: the folder is missing, there are fewer than two classes, a class has no images, a
            link points to a containing folder, folders are nested deeper than 32 levels, or a file
            occurs in two classes.
    """
    folder = root / part
    classes = tuple(among) if among is not None else _classes(folder, wanted)
    present = classes if among is None else _known(folder, among)
    walk = _Walk(root, most)
    for name in present:
        before = len(walk.images)
        walk.add(folder / name, classes.index(name))
        if len(walk.images) == before:
            raise DataError(
                f"{folder / name}: expected images ({', '.join(sorted(SUFFIXES))}), found none"
            )
    if not walk.images:
        raise DataError(f"{folder}: expected images in sub-folders of classes, found none")
    images = tuple(sorted(walk.images, key=lambda image: (image[1], image[0])))
    return FolderListing(classes=classes, images=images, repeated=walk.repeated)


def _known(folder: Path, classes: Sequence[str]) -> list[str]:
    found = _sub_folders(folder)
    if unknown := sorted(set(found) - set(classes)):
        raise DataError(
            f"{folder}: expected the classes of the train part ({', '.join(classes)}), received "
            f"also {unknown[0]}"
        )
    return [name for name in classes if name in found]


def list_files(folder: Path) -> list[str]:
    """Return the paths of all images below a folder, relative to it, sorted.

    Raises:
        DataError: the folder is missing, or has no images.
    """
    if not folder.is_dir():
        raise DataError(f"the folder {folder} is missing")
    walk = _Walk(folder)
    walk.add(folder, 0)
    if not walk.images:
        raise DataError(f"{folder}: expected images ({', '.join(sorted(SUFFIXES))}), found none")
    return sorted(path for path, _ in walk.images)


def _classes(root: Path, wanted: list[str] | None) -> tuple[str, ...]:
    if not os.path.isdir(root):
        what = "is a file" if os.path.exists(root) else "is missing"
        raise DataError(
            f"the image folder {root} {what}: expected a folder with one sub-folder a class"
        )
    found = _sub_folders(root)
    if wanted is not None and (absent := sorted(set(wanted) - set(found))):
        raise DataError(
            f"{root}: data.classes names {absent[0]!r}, received the sub-folders "
            f"{', '.join(found) or 'none'}"
        )
    classes = tuple(wanted) if wanted is not None else tuple(found)
    if len(classes) < 2:
        raise DataError(
            f"{root}: expected at least two sub-folders, one a class; received "
            f"{', '.join(classes) or 'none'}"
        )
    return classes


def _sub_folders(folder: Path) -> list[str]:
    return [
        path.name
        for path in _entries(folder)
        if os.path.isdir(path) and not path.name.startswith((".", "__")) and not _holds_runs(path)
    ]


def _holds_runs(folder: Path) -> bool:
    """Return whether a folder contains runs: started inside of the data, they are not a class."""
    return any(folder.glob("*/run.json"))


@dataclass
class _Walk:
    """Walks the classes in order and records each file's first name."""

    root: Path
    most: int | None = None
    images: list[tuple[str, int]] = field(default_factory=list)
    _start: int = 0
    repeated: int = 0
    _first: dict[Identity, tuple[Path, int]] = field(default_factory=dict)

    def add(self, folder: Path, label: int) -> None:
        """List the images of one class."""
        self._start = len(self.images)
        places = {*folder.resolve().parents, self.root.resolve(), *self.root.resolve().parents}
        if folder == self.root:
            places.discard(folder.resolve())
        self._enter(folder, label, set(), {_identity(place) for place in places}, 1)

    def _enter(
        self, folder: Path, label: int, seen: set[Identity], above: set[Identity], depth: int
    ) -> None:
        """List a folder unless this class already contains it; ``above`` are its parents."""
        identity = _identity(folder)
        if identity in above:
            raise DataError(
                f"{folder} is a link to {folder.resolve()}, which it lies in: its images would be "
                "listed again and again, under wrong labels. Remove the link."
            )
        if depth > MAX_DEPTH:
            raise DataError(
                f"{folder}: expected folders of at most {MAX_DEPTH} levels below {self.root}"
            )
        if identity in seen:
            return
        seen.add(identity)
        for path in _entries(folder):
            if self.most is not None and len(self.images) - self._start >= self.most:
                return
            if os.path.isdir(path):
                self._enter(path, label, seen, above | {identity}, depth + 1)
            elif path.suffix.lower() in SUFFIXES and not path.name.startswith("."):
                self._add_file(path, label)

    def _add_file(self, path: Path, label: int) -> None:
        try:
            identity = _identity(path)
        except OSError:  # a dangling link, reported when it is read
            self.images.append((path.relative_to(self.root).as_posix(), label))
            return
        first, its_label = self._first.setdefault(identity, (path, label))
        if its_label != label:
            raise DataError(
                f"{path} and {first} are one file, in two classes: expected each image in one "
                "class. Remove one of the two names."
            )
        if first == path:
            self.images.append((path.relative_to(self.root).as_posix(), label))
        else:
            self.repeated += 1


def _entries(folder: Path) -> list[Path]:
    """Return the entries of a folder, sorted by name.

    Raises:
        DataError: the folder cannot be listed, or a name is not UTF-8.
    """
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise DataError(f"the folder {folder} can't be listed: {error.strerror}") from error
    if odd := [name for name in names if any("\ud800" <= letter <= "\udfff" for letter in name)]:
        raise DataError(
            f"{folder}: expected names in UTF-8, received {os.fsencode(odd[0])!r}: rename it"
        )
    return [folder / name for name in names]


def _identity(path: Path) -> Identity:
    status = path.stat()
    return status.st_dev, status.st_ino
