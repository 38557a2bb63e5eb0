"""Source of image files with targets.

Images are read from their files on demand, or copied into shards.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from qat_lib.errors import DataError
from qatline.components.artifacts import Dataset
from qatline.components.artifacts.data_info import InputInfo
from qatline.components.data.array_checks import ONLY_INPUT, Array, chunks
from qatline.components.data.image_split import write_shards
from qatline.components.data.images import decode_image, read_image, room_for_file
from qatline.components.data.source import LeftOut, Samples
from qatline.components.data.splits import Indices
from qatline.components.settings import DataSettings
from qatline.components.support.events import Progress

_BLOCK = 256


@dataclass(frozen=True, kw_only=True)
class FilePart:
    """Images of a part.

    Args:
        paths: path of each image below the source's folder.
        targets: target of each image, ``(images, ...)``; possibly memory-mapped.
        digests: SHA-256 of the content of each file.
        weights: weight of each image in the training, float32 ``(images,)``; None for no weights.
    """

    paths: Sequence[str]
    targets: Array
    digests: Sequence[bytes]
    weights: Array | None = None


@dataclass(frozen=True, kw_only=True)
class FileSource:
    """Checked image files; see ``qatline.components.data.source.Source`` for the properties.

    Args:
        folder: base of the paths.
        parts: ``train``, and optionally ``validation`` and ``test``.
        classes: names in label order; empty if the source has none.
        image_shape: shape of every image after resizing.
        resized: whether images are resized.
        broken: number of skipped images.
        shards: whether ``write`` copies the images for use on other machines.
        location: origin of the folder, for display; the folder itself if empty.
    """

    folder: Path
    parts: Mapping[str, FilePart]
    classes: tuple[str, ...]
    image_shape: tuple[int, int, int]
    resized: bool
    broken: int
    shards: bool = False
    location: str = ""

    @property
    def targets(self) -> Mapping[str, Array]:
        """Targets of each part."""
        return {name: part.targets for name, part in self.parts.items()}

    @property
    def weights(self) -> Array | None:
        """Weights of the training images."""
        return self.parts["train"].weights

    @property
    def inputs(self) -> Mapping[str, InputInfo]:
        """The images."""
        return {ONLY_INPUT: InputInfo(shape=self.image_shape, dtype="uint8")}

    @property
    def description(self) -> str:
        """The folder or its origin."""
        return self.location or str(self.folder)

    @property
    def root(self) -> str | None:
        """The absolute folder if the images remain there."""
        return None if self.shards else str(self.folder.resolve())

    def scale(self, name: str) -> float:  # noqa: ARG002
        """Return the default factor on pixels."""
        return 1 / 255

    def resize(self, name: str) -> str | None:  # noqa: ARG002
        """Return ``bilinear`` if images are resized."""
        return "bilinear" if self.resized else None

    def sample(self, part: str, index: int) -> str:
        """Return the path of an image."""
        return str(self.folder / self.parts[part].paths[index])

    def fingerprint(self) -> str:
        """Return the SHA-256 over path, target and content of every image."""
        digest = hashlib.sha256()
        for name, part in self.parts.items():
            digest.update(f"{name}\0".encode())
            for path, content in zip(part.paths, part.digests, strict=True):
                digest.update(f"{path}\0".encode() + content)
            for _, chunk in chunks(part.targets):
                digest.update(np.ascontiguousarray(chunk).data)
            if part.weights is not None:
                digest.update(b"weights" + part.weights.tobytes())
        return digest.hexdigest()

    def write(
        self, dataset: Dataset, split: str, samples: Samples, progress: Progress
    ) -> list[bytes]:
        """Write a list of paths, or the images themselves into shards.

        Raises:
            DataError: an image changed since it was checked.
        """
        part, indices = self.parts[samples.part], samples.indices
        if self.shards:
            write_shards(dataset, split, self._contents(split, part, indices, progress))
        else:
            listed = json.dumps([part.paths[index] for index in indices])
            dataset.listing_file(split).write_text(listed + "\n", encoding="utf-8")
            progress.update(f"writing {split}", len(indices), len(indices))
        return [part.digests[index] for index in indices]

    def _contents(
        self, split: str, part: FilePart, indices: Indices, progress: Progress
    ) -> Iterator[tuple[str, bytes]]:
        for done, index in enumerate(indices, start=1):
            path = self.folder / part.paths[index]
            content = read_image(path)
            if hashlib.sha256(content).digest() != part.digests[index]:
                raise DataError(
                    f"the image {path} has changed while it was prepared: run again when nothing "
                    "writes into the folder"
                )
            yield part.paths[index], content
            progress.update(f"writing {split}", done, len(indices))


@dataclass(frozen=True, kw_only=True)
class CheckedImages:
    """Readable images of a list.

    Args:
        kept: their indices in the list.
        sizes: ``(height, width)`` of each before resizing.
        digests: SHA-256 of the content of each file.
        shape: their common shape after resizing.
        broken: number of unreadable images, which are left out.
    """

    kept: Indices
    sizes: Sequence[tuple[int, int]]
    digests: Sequence[bytes]
    shape: tuple[int, int, int]
    broken: int


def check_images(
    root: Path,
    paths: Sequence[str],
    settings: DataSettings,
    progress: Progress,
    annotated: Sequence[tuple[float, float]] | None = None,
) -> CheckedImages:
    """Decode each image to find broken ones, and compare their sizes.

    Args:
        root: base of the paths.
        paths: the images.
        settings: size and colors of the images, and whether broken ones are left out.
        progress: receives the images, and warnings.
        annotated: ``(height, width)`` of each by its annotations; an image of another size is
            broken. Default None.

    Raises:
        DataError: an image is broken (unless ``skip_broken``), or sizes differ without
            ``image_size``.
    """
    kept: list[int] = []
    sizes: list[tuple[int, int]] = []
    digests: list[bytes] = []
    shape: tuple[int, int, int] | None = None
    left_out = LeftOut(progress)
    for index, result in enumerate(_decode_all(root, paths, settings)):
        progress.update("checking images", index + 1, len(paths))
        if annotated is not None and not isinstance(result, DataError):
            result = _of_size(result, annotated[index], root / paths[index])
        if isinstance(result, DataError):
            if not settings.skip_broken:
                raise result
            left_out.add(result)
            continue
        (height, width, channels), digest = result
        found = (*(settings.image_size or (height, width)), channels)
        if shape is not None and found != shape:
            raise DataError(
                f"images differ in size: {root / paths[kept[0]]} is {shape[0]}x{shape[1]}, "
                f"{root / paths[index]} is {height}x{width}. Set data.image_size=[height, width]."
            )
        shape = found
        kept.append(index)
        sizes.append((height, width))
        digests.append(digest)
    left_out.tell_rest()
    if shape is None:
        raise DataError(f"{root}: no readable image is left")
    return CheckedImages(
        kept=np.asarray(kept, np.int64),
        sizes=sizes,
        digests=digests,
        shape=shape,
        broken=left_out.count,
    )


def _of_size(result: _Decoded, annotated: tuple[float, float], path: Path) -> _Checked:
    """Return the result, or an error if an image has another size than its annotations say."""
    height, width = result[0][:2]
    if (height, width) == annotated:
        return result
    problem = f"the image {path} is {width}x{height}"
    if (width, height) == annotated:
        problem += " if turned as its EXIF tag says"
    return DataError(
        f"{problem}, its annotations are for {annotated[1]:g}x{annotated[0]:g}. Correct them, or "
        "set data.skip_broken=true."
    )


_Decoded = tuple[tuple[int, int, int], bytes]
_Checked = _Decoded | DataError


def _decode_all(root: Path, paths: Sequence[str], settings: DataSettings) -> Iterator[_Checked]:
    """Decode in threads, in blocks that bound the queue of images."""

    def check(name: str) -> _Checked:
        path = root / name
        try:
            with room_for_file(path):
                data = read_image(path)
                height, width, channels = decode_image(
                    data, settings.color, None, name=str(path)
                ).shape
                return (height, width, channels), hashlib.sha256(data).digest()
        except DataError as error:
            return error

    waiting = iter(paths)
    with ThreadPoolExecutor(max_workers=min(16, os.cpu_count() or 1)) as pool:
        while block := list(islice(waiting, _BLOCK)):
            yield from pool.map(check, block)
