"""Source of image files with one sub-folder per class.

Images are read from their files on demand, or copied into shards.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from qat_lib.errors import DataError
from qatline.components.artifacts import Dataset
from qatline.components.data.folder_listing import list_images
from qatline.components.data.images import decode_image, read_image, room_for_file
from qatline.components.data.shards import write_shards
from qatline.components.data.source import Samples
from qatline.components.data.splits import Indices, stratified_subset
from qatline.components.settings import DataSettings
from qatline.components.support.events import Progress

_BLOCK = 256


@dataclass(frozen=True, kw_only=True)
class FolderSource:
    """Checked image files; see ``qatline.components.data.source.Source`` for the properties.

    Args:
        folder: base of ``paths``.
        paths: paths of all images, sorted by class.
        targets: label of each image, int64 ``(images,)``.
        digests: SHA-256 of the content of each file.
        classes: names of the sub-folders in label order.
        image_shape: shape of every image after resizing.
        resize: ``bilinear`` if images are resized.
        broken: number of skipped images.
        shards: whether ``write`` copies the images for use on other machines.
        location: origin of the folder if it is remote.
    """

    folder: Path
    paths: tuple[str, ...]
    targets: Indices
    digests: tuple[bytes, ...]
    classes: tuple[str, ...]
    image_shape: tuple[int, int, int]
    resize: str | None
    broken: int
    dtype: str = "uint8"
    scale: float = 1 / 255
    shards: bool = False
    location: str = ""

    @property
    def labels(self) -> Mapping[str, Indices]:
        """Labels of the only part, ``train``."""
        return {"train": self.targets}

    @property
    def description(self) -> str:
        """The folder or its origin."""
        return self.location or str(self.folder)

    @property
    def root(self) -> str | None:
        """The absolute folder if the images remain there."""
        return None if self.shards else str(self.folder.resolve())

    def fingerprint(self) -> str:
        """Return the SHA-256 over path, label and content of every image."""
        digest = hashlib.sha256()
        for path, label, content in zip(self.paths, self.targets, self.digests, strict=True):
            digest.update(f"{path}\0{label}\0".encode() + content)
        return digest.hexdigest()

    def write(
        self, dataset: Dataset, split: str, samples: Samples, progress: Progress
    ) -> list[bytes]:
        """Write a list of ``[path, label]``, or the images themselves into shards.

        Raises:
            DataError: an image changed since it was checked.
        """
        indices = samples.indices
        if self.shards:
            write_shards(dataset, split, self._contents(split, indices, progress))
            return [self.digests[index] for index in indices]
        listed = [[self.paths[index], int(self.targets[index])] for index in indices]
        dataset.listing_file(split).write_text(json.dumps(listed) + "\n", encoding="utf-8")
        progress.update(f"writing {split}", len(listed), len(listed))
        return [self.digests[index] for index in indices]

    def _contents(
        self, split: str, indices: Indices, progress: Progress
    ) -> Iterator[tuple[str, int, bytes]]:
        for done, index in enumerate(indices, start=1):
            path = self.folder / self.paths[index]
            content = read_image(path)
            if hashlib.sha256(content).digest() != self.digests[index]:
                raise DataError(
                    f"the image {path} has changed while it was prepared: run again when nothing "
                    "writes into the folder"
                )
            yield self.paths[index], int(self.targets[index]), content
            progress.update(f"writing {split}", done, len(indices))


def read_folder(
    root: Path, settings: DataSettings, progress: Progress, *, seed: int
) -> FolderSource:
    """List the images below ``root`` and decode each to find broken ones.

    With ``limit`` the images are selected before decoding, so that trials on large folders are
    fast; the fingerprint then covers the selected images.

    Raises:
        DataError: the folder or its classes are missing, a class is empty, an image is broken
            (unless ``skip_broken``), or sizes differ without ``image_size``.
    """
    listing = list_images(root, settings.classes)
    classes, listed = listing.classes, list(listing.images)
    if listing.repeated:
        progress.warn(
            f"{listing.repeated} names below {root} are links to images that are counted already"
        )
    if settings.limit:
        targets = np.array([label for _, label in listed], np.int64)
        chosen = stratified_subset(targets, settings.limit, seed=seed, classes=len(classes))
        listed = [listed[index] for index in chosen]
    paths: list[str] = []
    labels: list[int] = []
    digests: list[bytes] = []
    shape: tuple[int, ...] | None = None
    broken = 0
    for done, (path, label, result) in enumerate(_decode_all(root, listed, settings), start=1):
        progress.update("checking images", done, len(listed))
        if isinstance(result, DataError):
            if not settings.skip_broken:
                raise result
            broken += 1
            progress.warn(f"left out: {result}")
            continue
        size, digest = result
        if shape is not None and size != shape:
            raise DataError(
                f"images differ in size: {root / paths[0]} is {shape[0]}x{shape[1]}, "
                f"{root / path} is {size[0]}x{size[1]}. Set data.image_size=[height, width]."
            )
        shape = size
        paths.append(path)
        labels.append(label)
        digests.append(digest)
    seen = set(labels)
    if missing := sorted({name for index, name in enumerate(classes) if index not in seen}):
        raise DataError(f"{root}: no readable image is left in class {missing[0]!r}")
    height, width, channels = shape or (0, 0, 0)
    return FolderSource(
        folder=root,
        paths=tuple(paths),
        targets=np.asarray(labels, np.int64),
        digests=tuple(digests),
        classes=classes,
        image_shape=(height, width, channels),
        resize="bilinear" if settings.image_size else None,
        broken=broken,
        shards=settings.storage == "shards",
    )


_Checked = tuple[tuple[int, ...], bytes] | DataError


def _decode_all(
    root: Path, listed: list[tuple[str, int]], settings: DataSettings
) -> Iterator[tuple[str, int, _Checked]]:
    """Decode in threads, in blocks that bound the queue of images."""

    def check(item: tuple[str, int]) -> _Checked:
        path = root / item[0]
        try:
            with room_for_file(path):
                data = read_image(path)
                pixels = decode_image(data, settings.color, settings.image_size, name=str(path))
                return pixels.shape, hashlib.sha256(data).digest()
        except DataError as error:
            return error

    waiting = iter(listed)
    with ThreadPoolExecutor(max_workers=min(16, os.cpu_count() or 1)) as pool:
        while block := list(islice(waiting, _BLOCK)):
            for (path, label), result in zip(block, pool.map(check, block), strict=True):
                yield path, label, result
