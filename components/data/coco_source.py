"""Reader of images with boxes in COCO's format."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qat_lib.errors import DataError
from qat_lib.files.text_files import read_json
from qatline.components.data.array_checks import Array
from qatline.components.data.file_source import FileSource, check_images
from qatline.components.data.folder_listing import PART_NAMES
from qatline.components.data.folder_source import limited, make_source
from qatline.components.data.source import LeftOut
from qatline.components.settings import DataSettings
from qatline.components.support.events import Progress

# Largest file of annotations; that of COCO's training part has 0.5 GB.
_BYTES = 2 << 30

# Pixels by which a box may extend beyond its image; it is clipped.
_OVERHANG = 1.0

# Files named in an error.
_NAMED = 5


@dataclass(frozen=True, kw_only=True)
class _Box:
    """An annotation: its name for messages, box as x, y, width, height, class, and crowd."""

    name: str
    box: tuple[float, float, float, float]
    label: int
    crowd: bool


@dataclass(frozen=True, kw_only=True)
class _Image:
    """An image: its path below the folder, ``(height, width)`` and boxes."""

    path: str
    size: tuple[float, float]
    boxes: list[_Box]


def read_coco(
    root: Path, settings: DataSettings, progress: Progress, head: int | None = None
) -> FileSource:
    """Read images and the boxes of COCO files.

    The files are those of ``data.annotations``, or the JSON files in ``root`` and
    ``root/annotations``: one for each part, recognized by its name, or a single one; or the one in
    each folder of a part, such as ``root/train``. Images lie beside their file, in ``root``,
    ``root/images``, or a folder there named like the file without ``instances_``.

    Targets are float32 ``(images, boxes, 6)``: x1, y1, x2, y2 in pixels of the resized image, class
    and crowd. Missing boxes have class -1. Images without boxes are kept.

    Args:
        root: the folder.
        settings: annotations, class names, and size and colors of the images.
        progress: receives the images, and warnings.
        head: number of images of each part to read; None for all.

    Raises:
        DataError: a file or image is missing or damaged, or an annotation is wrong; the message
            names the file and the annotation. With ``skip_broken``, broken images and wrong boxes
            are left out instead, and boxes that extend beyond their image are clipped.
    """
    classes: tuple[str, ...] | None = None
    images: list[_Image] = []
    sizes: dict[str, int] = {}
    files = find_annotations(root, settings.annotations)
    for part in sorted(files, key="train".__ne__):  # its categories are the classes
        file = _CocoFile(root, files[part], settings, progress)
        classes, found = file.read(classes)
        found = found[:head]
        images += found
        sizes[part] = len(found)
    images = limited(images, sizes, settings.limit)
    paths = [image.path for image in images]
    annotated = [image.size for image in images]
    checked = check_images(root, paths, settings, progress, annotated)
    kept = [images[index] for index in checked.kept]
    targets = _targets(kept, checked.shape)
    return make_source(root, paths, targets, classes or (), checked, settings, sizes=sizes)


def find_annotations(root: Path, given: str | Mapping[Any, str] | None) -> dict[str, Path]:
    """Return the file of each part, ``train`` and optionally ``validation`` and ``test``.

    Raises:
        DataError: none is found, two are of the same part, or none is for training.
    """
    if isinstance(given, str):
        return {"train": root / given}
    if given:
        return {PART_NAMES[name]: root / file for name, file in given.items()}
    found = sorted(
        path for folder in (root, root / "annotations") for path in folder.glob("*.json")
    )
    if len(found) == 1:
        return {"train": found[0]}
    # Several files: their names contain the parts, such as instances_train2017.json. Without any,
    # the names of the folders do, such as train/_annotations.coco.json.
    named = [(path, path.stem.removeprefix("instances_").rstrip("0123456789")) for path in found]
    if not found:
        named = [(path, path.parent.name) for path in sorted(root.glob("*/*.json"))]
    parts: dict[str, Path] = {}
    for path, name in named:
        if (part := PART_NAMES.get(name)) is None:
            continue  # COCO has files of captions and key points, too
        if (other := parts.setdefault(part, path)) != path:
            raise DataError(f"{other} and {path} are the same part. Set data.annotations.")
    if "train" not in parts:
        received = [str(path.relative_to(root)) for path, _ in named[:_NAMED]]
        received += ["..."] if len(named) > _NAMED else []
        raise DataError(
            f"{root}: expected one JSON file of annotations, or train.json, instances_train*.json "
            "or a JSON file in the folder train, and those of the other parts; received "
            f"{', '.join(received) or 'none'}. Set data.annotations."
        )
    return parts


class _CocoFile:
    """One file of annotations.

    Args:
        root: base of the images' paths.
        path: the file.
        settings: class names, and whether wrong boxes are left out.
        progress: receives warnings.
    """

    def __init__(self, root: Path, path: Path, settings: DataSettings, progress: Progress) -> None:
        self._root, self._path, self._progress = root, path, progress
        self._wanted, self._skip = settings.classes, settings.skip_broken
        self._clipped = LeftOut(progress, "clipped")
        content = read_json(
            path, what="annotations of COCO", error=DataError, limit=_BYTES, unique=False
        )
        if not isinstance(content, dict):
            raise DataError(f"{path}: expected an object of images, annotations and categories")
        for name in ("images", "annotations", "categories"):
            rows = content.get(name)
            if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
                raise DataError(
                    f"{path}: expected {name} to be a list of objects, received {rows!r:.80}"
                )
        if not content["images"]:
            raise DataError(f"{path}: expected at least one image, received none")
        self._content: dict[str, list[dict[str, Any]]] = content

    def read(self, among: tuple[str, ...] | None) -> tuple[tuple[str, ...], list[_Image]]:
        """Return the class names and all images.

        Args:
            among: class names of the training part, if read already.
        """
        names = self._categories()
        classes = among or tuple(self._wanted or names.values())
        # With data.classes, boxes of other categories are left out.
        expected = classes if among is None else () if self._wanted else names.values()
        known = names.values() if among is None else among
        if unknown := sorted(set(expected) - set(known)):
            where = "here" if among is None else "in the training part"
            raise DataError(
                f"{self._path}: unknown category {unknown[0]!r} {where}; expected "
                f"{', '.join(known)}"
            )
        images = self._images()
        left_out = LeftOut(self._progress)
        for row in self._content["annotations"]:
            try:
                box = self._box(row, names, classes, images)
            except DataError as error:
                if not self._skip:
                    raise DataError(
                        f"{error}. Correct the box, or set data.skip_broken=true."
                    ) from error
                left_out.add(error)
                continue
            if box is not None:
                images[row["image_id"]].boxes.append(box)
        left_out.tell_rest()
        self._clipped.tell_rest()
        return classes, list(images.values())

    def _categories(self) -> dict[Any, str]:
        """Return the names by id, in the order of the ids."""
        found: dict[Any, str] = {}
        for row in self._content["categories"]:
            number, name = row.get("id"), row.get("name")
            if not isinstance(number, int) or not isinstance(name, str) or number in found:
                raise DataError(
                    f"{self._path}: expected categories with a name and a unique integer id, "
                    f"received {row!r:.120}"
                )
            found[number] = name
        if not found or len(set(found.values())) < len(found):
            raise DataError(
                f"{self._path}: expected categories with different names, received "
                f"{', '.join(found.values()) or 'none'}"
            )
        return {number: found[number] for number in sorted(found)}

    def _images(self) -> dict[Any, _Image]:
        folder = self._folder()
        found: dict[Any, _Image] = {}
        for row in self._content["images"]:
            number, name = row.get("id"), row.get("file_name")
            size = (row.get("height"), row.get("width"))
            fits = isinstance(name, str) and isinstance(number, int | str) and number not in found
            if not fits or not all(_is_number(each) and float(each or 0) > 0 for each in size):
                raise DataError(
                    f"{self._path}: expected images with a unique id, file_name, width and height; "
                    f"received {row!r:.160}"
                )
            # The file's author chooses the names; none may lead out of the folder.
            path = folder / str(name)
            if not path.resolve().is_relative_to(self._root.resolve()):
                raise DataError(f"{self._path}: the image {number} lies outside of {self._root}")
            if not path.is_file():
                raise DataError(
                    f"{self._path}: the file of image {number} is missing: {path}. Expected images "
                    "next to the JSON file, in data.path, or in its folder images."
                )
            relative = path.relative_to(self._root).as_posix()
            found[number] = _Image(path=relative, size=(size[0], size[1]), boxes=[])  # type: ignore[arg-type]
        return found

    def _folder(self) -> Path:
        """Return the folder of the images: the first that has any of the first ones."""
        part = self._path.stem.removeprefix("instances_")
        root = self._root
        places = (self._path.parent, root, root / "images", root / part, root / "images" / part)
        names = [str(row.get("file_name")) for row in self._content["images"][:8]]
        for place in places:
            if any((place / name).is_file() for name in names):
                return place
        return root / "images" if (root / "images").is_dir() else root

    def _box(
        self,
        row: dict[str, Any],
        names: Mapping[Any, str],
        classes: Sequence[str],
        images: Mapping[Any, _Image],
    ) -> _Box | None:
        """Return an annotation; None for other categories than ``classes``."""
        where = f"{self._path}: annotation {row.get('id')!r:.40}"
        image, category, box = (row.get(key) for key in ("image_id", "category_id", "bbox"))
        if not isinstance(image, int | str) or image not in images:
            raise DataError(f"{where}: no image has the id {image!r:.40}")
        if not isinstance(category, int) or category not in names:
            raise DataError(
                f"{where}: expected a category_id of {', '.join(map(str, names))}; received "
                f"{category!r:.40}"
            )
        if not isinstance(box, list) or len(box) != 4 or not all(map(_is_number, box)):
            raise DataError(
                f"{where}: expected a bbox of four finite numbers, x, y, width and height; received "
                f"{box!r:.120}"
            )
        x, y, width, height = map(float, box)
        if width <= 0 or height <= 0:
            raise DataError(f"{where}: expected a bbox with width and height, received {box}")
        rows, columns = images[image].size
        beyond = max(-x, -y, x + width - columns, y + height - rows)
        around = f"image {images[image].path}, {columns:g}x{rows:g}"
        if min(x + width, columns) <= max(x, 0) or min(y + height, rows) <= max(y, 0):
            raise DataError(f"{where}: the bbox {box} is empty within the {around}")
        if beyond > _OVERHANG:
            problem = f"{where}: the bbox {box} extends {beyond:g} pixels beyond the {around}"
            if not self._skip:
                raise DataError(problem)
            self._clipped.add(problem)
        # After the checks: a wrong box is an error even if its class is left out.
        if names[category] not in classes:
            return None
        label = classes.index(names[category])
        return _Box(
            name=where, box=(x, y, width, height), label=label, crowd=bool(row.get("iscrowd"))
        )


def _is_number(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isfinite(value)


def _targets(images: Sequence[_Image], shape: tuple[int, int, int]) -> Array:
    """Return the boxes in pixels of the resized images."""
    most = max(1, max(len(image.boxes) for image in images))
    targets = np.zeros((len(images), most, 6), np.float32)
    targets[..., 4] = -1
    height, width, _ = shape
    for row, image in zip(targets, images, strict=True):
        for index, values in enumerate(_scaled(image, height, width)):
            row[index] = values
    return targets


def _scaled(image: _Image, height: int, width: int) -> Iterator[tuple[float, ...]]:
    rows, columns = image.size
    for each in image.boxes:
        x, y, wide, high = each.box
        x1, x2 = (min(max(value, 0.0), columns) * width / columns for value in (x, x + wide))
        y1, y2 = (min(max(value, 0.0), rows) * height / rows for value in (y, y + high))
        if not (np.float32(x1) < np.float32(x2) and np.float32(y1) < np.float32(y2)):
            raise DataError(f"{each.name}: the box {each.box} is empty within its image")
        yield x1, y1, x2, y2, each.label, each.crowd
