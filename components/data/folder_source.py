"""Reader of folders of images: one sub-folder per class, or images with masks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import TypeVar

import numpy as np

from qat_lib.errors import DataError
from qatline.components.data.array_checks import Array
from qatline.components.data.file_source import (
    CheckedImages,
    FilePart,
    FileSource,
    check_images,
)
from qatline.components.data.folder_listing import find_parts, list_files, list_images
from qatline.components.data.images import decode_mask, read_image
from qatline.components.data.splits import stratified_subset
from qatline.components.settings import DataSettings
from qatline.components.support.events import Progress

CLASS_NAMES = "classes.txt"
"""File with the class names of masks, one per line."""

_IMAGES, _MASKS = "images", "masks"
_THREADS = 8

_T = TypeVar("_T")


def read_folder(
    root: Path,
    settings: DataSettings,
    progress: Progress,
    *,
    seed: int,
    head: int | None = None,
) -> FileSource:
    """List the images below ``root`` and decode each to find broken ones.

    A folder with the sub-folders ``train``, ``val`` and ``test`` is split already. Otherwise, with
    ``limit``, the images are selected before decoding, so that trials on large folders are fast;
    the fingerprint then covers the selected images.

    Args:
        root: the folder.
        settings: class names, and size and colors of the images.
        progress: receives the images, and warnings.
        seed: seed of the selection.
        head: number of images of each part to read; None for all.

    Raises:
        DataError: the folder or its classes are missing, a class is empty, an image is broken
            (unless ``skip_broken``), or sizes differ without ``image_size``.
    """
    folders = find_parts(root, settings.classes) or {"train": ""}
    classes: tuple[str, ...] | None = None
    listed: dict[str, list[tuple[str, int]]] = {}
    for name in sorted(folders, key="train".__ne__):  # its classes come first
        listing = list_images(root, settings.classes, part=folders[name], among=classes, most=head)
        classes, listed[name] = listing.classes, list(listing.images)
        if listing.repeated:
            progress.warn(
                f"{listing.repeated} names below {root / folders[name]} are links to images that "
                "are counted already"
            )
    classes = classes or ()
    # Select before decoding: on a large folder, decoding takes nearly all the time.
    if settings.limit and len(listed) == 1:
        targets = np.array([label for _, label in listed["train"]], np.int64)
        chosen = stratified_subset(targets, settings.limit, seed=seed, classes=len(classes))
        listed["train"] = [listed["train"][index] for index in chosen]
    if head is not None:
        listed = {name: _spread(images, head) for name, images in listed.items()}
    # Check the images of all parts in one go, and report all broken ones.
    flat = [image for images in listed.values() for image in images]
    checked = check_images(root, [path for path, _ in flat], settings, progress)
    labels = np.array([flat[index][1] for index in checked.kept], np.int64)
    seen = set(labels.tolist())
    # With skip_broken, a class can lose all of its images.
    missing = [name for index, name in enumerate(classes) if index not in seen]
    if missing and head is None:
        raise DataError(f"{root}: no readable image is left in class {min(missing)!r}")
    sizes = {name: len(images) for name, images in listed.items()}
    return make_source(
        root, [path for path, _ in flat], labels, classes, checked, settings, sizes=sizes
    )


def read_masks(
    root: Path,
    settings: DataSettings,
    progress: Progress,
    scratch: Path,
    head: int | None = None,
) -> FileSource:
    """Read images and the masks of the same names.

    ``root`` contains ``images/`` and ``masks/``, or ``train/``, ``val/`` and ``test/`` with these
    folders. Class names are in ``classes.txt``, one per line, or in ``data.classes``.

    Args:
        root: the folder.
        settings: size of the images, and class names.
        progress: receives the images.
        scratch: folder for the decoded masks.
        head: number of images of each part to read; None for all.

    Raises:
        DataError: a folder or mask is missing, an image or mask is broken, a mask has another size
            than its image, or sizes differ without ``image_size``.
    """
    folders = find_parts(root, settings.classes) or {"train": ""}
    pairs: list[tuple[str, str]] = []
    sizes: dict[str, int] = {}
    for name in sorted(folders, key="train".__ne__):
        found = _pairs(root, folders[name])
        found = found if head is None else _spread(found, head)
        pairs += found
        sizes[name] = len(found)
    pairs = limited(pairs, sizes, settings.limit)
    checked = check_images(root, [image for image, _ in pairs], settings, progress)
    masks = _read_masks(root, [pairs[index][1] for index in checked.kept], checked, scratch)
    return make_source(
        root,
        [image for image, _ in pairs],
        masks,
        tuple(settings.classes or _class_names(root)),
        checked,
        settings,
        sizes=sizes,
    )


def _spread(images: list[_T], count: int) -> list[_T]:
    """Return at most ``count`` elements from the whole list."""
    return images[:: max(1, -(-len(images) // count))]


def _pairs(root: Path, part: str) -> list[tuple[str, str]]:
    """Return the paths of each image and its mask below ``root``."""
    images, masks = root / part / _IMAGES, root / part / _MASKS
    for folder in (images, masks):
        if not folder.is_dir():
            raise DataError(
                f"the folder {folder} is missing: expected images in {_IMAGES}/ and their masks in "
                f"{_MASKS}/"
            )
    mask_of: dict[PurePosixPath, str] = {}
    for name in list_files(masks):
        if (other := mask_of.setdefault(PurePosixPath(name).with_suffix(""), name)) != name:
            raise DataError(f"{masks}: {other} and {name} are masks of the same image")
    found = []
    for name in list_files(images):
        mask = mask_of.get(PurePosixPath(name).with_suffix(""))
        if mask is None:
            raise DataError(f"the image {images / name} has no mask in {masks}")
        base = PurePosixPath(part)
        found.append(((base / _IMAGES / name).as_posix(), (base / _MASKS / mask).as_posix()))
    return found


def _class_names(root: Path) -> Sequence[str]:
    path = root / CLASS_NAMES
    if not path.is_file():
        return ()
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} can't be read: {error}") from error
    names = [line.strip() for line in lines if line.strip()]
    if len(names) < 2 or len(set(names)) < len(names):
        raise DataError(f"{path}: expected at least two different names, received {names!r:.200}")
    return names


def _read_masks(root: Path, paths: Sequence[str], checked: CheckedImages, scratch: Path) -> Array:
    """Decode masks into a memory-mapped file, uint8 ``(masks, height, width)``."""
    size = checked.shape[:2]

    def read(item: tuple[str, tuple[int, int]]) -> Array:
        path, expected = root / item[0], item[1]
        data = read_image(path)
        mask = decode_mask(data, None, name=str(path))
        if mask.shape != expected:
            raise DataError(
                f"the mask {path} is {mask.shape[0]}x{mask.shape[1]}, its image "
                f"{expected[0]}x{expected[1]}: expected the same size"
            )
        return mask if mask.shape == size else decode_mask(data, size, name=str(path))

    file = scratch / "masks.bin"
    with file.open("wb") as stream, ThreadPoolExecutor(max_workers=_THREADS) as pool:
        items = list(zip(paths, checked.sizes, strict=True))
        for start in range(0, len(items), 64):  # bounds the queue
            for mask in pool.map(read, items[start : start + 64]):
                stream.write(mask.tobytes())
    return np.memmap(file, np.uint8, mode="r", shape=(len(paths), *size))


def limited(items: list[_T], sizes: dict[str, int], limit: int | None) -> list[_T]:
    """Return at most ``limit`` items of a single part, and change its size in place.

    Images left out need not be decoded. Several parts are reduced later, each by the same share.
    """
    if not limit or len(sizes) > 1:
        return items
    chosen = np.random.default_rng(0).permutation(len(items))[:limit]
    sizes["train"] = len(chosen)
    return [items[index] for index in np.sort(chosen)]


def make_source(
    root: Path,
    paths: Sequence[str],
    targets: Array,
    classes: tuple[str, ...],
    checked: CheckedImages,
    settings: DataSettings,
    *,
    sizes: Mapping[str, int],
    location: str = "",
    weights: Array | None = None,
) -> FileSource:
    """Return a source of the readable images of a list.

    Args:
        root: base of the paths.
        paths: all images, part by part.
        targets: targets of the readable images.
        classes: class names.
        checked: the readable images.
        settings: size and storage of the images.
        sizes: number of images of each part.
        location: origin of the images, for display.
        weights: sample weights of the readable images, float32 ``(images,)``; None for none.

    Raises:
        DataError: a part has no readable image.
    """
    parts, start = {}, 0
    for name, count in sizes.items():
        # ``kept`` is sorted, so the readable images of a part are a range of it.
        first, last = np.searchsorted(checked.kept, (start, start + count))
        if first == last:
            raise DataError(f"{root}: the {name} part has no readable image")
        parts[name] = FilePart(
            paths=[paths[index] for index in checked.kept[first:last]],
            targets=targets[first:last],
            digests=checked.digests[first:last],
            weights=None if weights is None else weights[first:last],
        )
        start += count
    return FileSource(
        folder=root,
        parts=parts,
        classes=classes,
        image_shape=checked.shape,
        resized=settings.image_size is not None,
        broken=checked.broken,
        shards=settings.storage == "shards",
        location=location,
    )
