"""Parts of images: a list of the original files, or shards.

Shards are tar files of the original images, for any tool to read, and an index. The index contains
the position of each image, so that images are read in any order without unpacking, on any machine
with access to the data set's directory.
"""

from __future__ import annotations

import io
import json
import os
import stat
import tarfile
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from qat_lib.errors import DataError
from qat_lib.files import limits
from qat_lib.files.text_files import read_json
from qat_lib.preprocessing import Preprocessing
from qatline.components.artifacts import Dataset
from qatline.components.artifacts.data_info import DatasetInfo
from qatline.components.data.images import (
    Pixels,
    as_png,
    decode_image,
    is_plain_jpeg,
    load_image,
    read_image,
)
from qatline.components.data.part import Indices
from qatline.components.data.stored_arrays import read_targets, read_weights

SHARD_BYTES = 1 << 30
_SAMPLE = 16  # images that decide on the decoder
# The index of a million images has about 60 MiB, and the list of as many files 50 MiB.
_INDEX_BYTES = 1 << 30

Entry = tuple[int, int, int, str]
"""Shard, offset and size of an image in it, name."""


def write_shards(
    dataset: Dataset,
    split: str,
    images: Iterable[tuple[str, bytes]],
    *,
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Write a part as ``<split>-00000.tar`` and so on, with its index.

    Args:
        dataset: directory of the data set.
        split: name of the part.
        images: name and content of each file, in the order of the part.
        shard_bytes: size after which a new shard begins.
    """
    entries: list[Entry] = []
    shards: list[str] = []
    with ExitStack() as shard:
        tar: tarfile.TarFile | None = None
        for name, content in images:
            if tar is None or tar.offset >= shard_bytes:
                shard.close()
                shards.append(f"{split}-{len(shards):05d}.tar")
                place = dataset.file(shards[-1])
                tar = shard.enter_context(tarfile.open(place, "w", format=tarfile.GNU_FORMAT))
            offset = _append(tar, name, content)
            entries.append((len(shards) - 1, offset, len(content), name))
    index = json.dumps({"shards": shards, "images": entries})
    dataset.shards_file(split).write_text(index + "\n", encoding="utf-8")


def _append(tar: tarfile.TarFile, name: str, content: bytes) -> int:
    """Append a file; return the offset of its content in the tar file.

    Owner and time are omitted: equal images give equal shards.
    """
    member = tarfile.TarInfo(name)
    member.size = len(content)
    member.mode = 0o644
    tar.addfile(member, io.BytesIO(content))
    blocks = -(-len(content) // tarfile.BLOCKSIZE)
    return tar.offset - blocks * tarfile.BLOCKSIZE


class _ImageSplit(ABC):
    """A part of images, decoded by a few threads."""

    def __init__(
        self, dataset: Dataset, split: str, info: DatasetInfo, form: Preprocessing, images: int
    ) -> None:
        self._color = form.color
        self.shape = info.image_shape
        self._size = (self.shape[0], self.shape[1]) if form.resize else None
        self._threads = min(8, os.cpu_count() or 1)
        self._pool = ThreadPoolExecutor(max_workers=self._threads, thread_name_prefix="decode")
        self.targets = read_targets(dataset, split, info, images)
        self.weights = read_weights(dataset, split, images)

    def inputs(self, indices: Indices) -> Pixels:
        """Return raw images, decoded from their files.

        Raises:
            DataError: an image is missing, broken or of another size since the data set was
                prepared.
        """
        images = np.empty((len(indices), *self.shape), np.uint8)

        def load(thread: int) -> None:
            for place in range(thread, len(indices), self._threads):
                images[place] = self._checked(indices[place])

        list(self._pool.map(load, range(self._threads)))
        return images

    def _checked(self, index: int) -> Pixels:
        name, image = self._load(index)
        if image.shape != self.shape:
            raise DataError(
                f"the image {name} is {image.shape}, expected {self.shape}: run prepare_data again"
            )
        return image

    def is_plain(self) -> bool:
        """Return whether the first images are plain JPEG files of the right size."""
        first = range(min(_SAMPLE, len(self.targets)))
        return all(is_plain_jpeg(self._content(index), self.shape) for index in first)

    def encoded(self, indices: Indices) -> npt.NDArray[np.object_]:
        """Return each image as a file that libjpeg decodes to its pixels: JPEG, or else PNG.

        Raises:
            DataError: as for ``inputs``.
        """
        files = np.empty(len(indices), object)
        for place, index in enumerate(indices):
            content = self._content(index)
            if not is_plain_jpeg(content, self.shape):
                content = as_png(self._checked(index))
            files[place] = content
        return files

    @abstractmethod
    def _content(self, index: int) -> bytes:
        """Return the content of an image's file."""

    @abstractmethod
    def _load(self, index: int) -> tuple[str, Pixels]:
        """Return the name of an image for messages, and its pixels."""


class FileSplit(_ImageSplit):
    """A part stored as a list of image files."""

    def __init__(
        self, dataset: Dataset, split: str, info: DatasetInfo, form: Preprocessing
    ) -> None:
        self._paths = _read_listing(dataset.listing_file(split))
        self._root = Path(info.root or "")
        super().__init__(dataset, split, info, form, len(self._paths))

    def _content(self, index: int) -> bytes:
        return read_image(f"{self._root}/{self._paths[index]}")

    def _load(self, index: int) -> tuple[str, Pixels]:
        path = self._root / self._paths[index]
        return str(path), load_image(path, self._color, self._size)


class ShardSplit(_ImageSplit):
    """A part stored in shards."""

    def __init__(
        self, dataset: Dataset, split: str, info: DatasetInfo, form: Preprocessing
    ) -> None:
        path = dataset.shards_file(split)
        names, self._entries = _read_index(path)
        self._files = [_Shard(dataset.file(name)) for name in names]
        self._check(path)
        super().__init__(dataset, split, info, form, len(self._entries))

    def _content(self, index: int) -> bytes:
        shard, offset, size, _ = self._entries[index]
        return self._files[shard].read(offset, size)

    def _load(self, index: int) -> tuple[str, Pixels]:
        name = self._entries[index][3]
        return name, decode_image(self._content(index), self._color, self._size, name=name)

    def _check(self, index: Path) -> None:
        largest = 4 * limits.image_pixels() + (1 << 20)
        for shard, offset, size, name in self._entries:
            inside = 0 <= shard < len(self._files) and offset >= 0 and 0 <= size <= largest
            if not inside or offset + size > self._files[shard].size:
                raise DataError(
                    f"{index} places the image {name} outside of its shard. Run prepare_data again."
                )


class _Shard:
    """An open shard with thread-safe random access."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            # O_NONBLOCK: opening a named pipe in place of a shard must not block.
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise DataError(
                f"{path} can't be read: {error.strerror}. Run prepare_data again."
            ) from error
        weakref.finalize(self, os.close, self._descriptor)
        status = os.fstat(self._descriptor)
        self.size = status.st_size if stat.S_ISREG(status.st_mode) else 0

    def read(self, offset: int, size: int) -> bytes:
        try:
            # pread has no shared file position: threads need no lock.
            return os.pread(self._descriptor, size, offset)
        except OSError as error:
            raise DataError(f"{self._path} can't be read: {error.strerror}.") from error


def _read_listing(path: Path) -> list[str]:
    listed = read_json(path, what="a list of images", error=DataError, limit=_INDEX_BYTES)
    if not isinstance(listed, list) or not all(isinstance(name, str) for name in listed):
        raise DataError(
            f"{path} can't be read: expected a list of paths, received {listed!r:.100}. Run "
            "prepare_data again."
        )
    return listed


def _read_index(path: Path) -> tuple[list[str], list[Entry]]:
    try:
        index = read_json(path, what="an index of shards", error=DataError, limit=_INDEX_BYTES)
        names = list(map(_file_name, index["shards"]))
        return names, list(_entries(index["images"]))
    except DataError:
        raise
    except (ValueError, TypeError, KeyError) as error:
        raise DataError(f"{path} can't be read: {error!r}. Run prepare_data again.") from error


def _file_name(name: Any) -> str:
    if not isinstance(name, str) or Path(name).name != name:
        raise ValueError(f"expected the name of a file next to the index, received {name!r}")
    return name


def _entries(images: Any) -> Iterator[Entry]:
    for shard, offset, size, name in images:
        yield int(shard), int(offset), int(size), str(name)
