"""Parts of a data set from numbered records of files, such as TFRecords.

Records are written to disk block by block. Encoded images are decoded once.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from qat_lib.errors import DataError
from qatline.components.data.array_checks import Array, Part, check_part, check_together
from qatline.components.data.array_source import ArraySource
from qatline.components.data.images import Pixels, decode_image, decode_mask, upright_size
from qatline.components.data.source import LeftOut
from qatline.components.data.streamed_arrays import ArrayWriter, Origins
from qatline.components.settings import DataSettings
from qatline.components.support.events import Progress

if TYPE_CHECKING:
    from typing_extensions import Self  # Python 3.10

VECTOR = "features"
"""Name of the input of single numbers, beside other inputs."""

Columns = Mapping[str, Array | Sequence[bytes]]
"""Values of some records by column: arrays ``(records, ...)``, or encoded images."""


class RecordParts:
    """Context manager that collects the records of each part, and closes the files.

    Args:
        settings: target columns, and color and size of images.
        scratch: folder for the arrays.
        progress: receives the number of records, and warnings.
    """

    def __init__(self, settings: DataSettings, scratch: Path, progress: Progress) -> None:
        self._settings, self._scratch, self._progress = settings, scratch, progress
        self._targets = settings.target_columns or []
        self._writers: dict[str, ArrayWriter] = {}
        self._origins: dict[str, Origins] = {}
        self._resized: set[str] = set()
        self._first: dict[str, tuple[str, tuple[int, ...]]] = {}
        self._broken = 0
        self._left_out = LeftOut(progress)
        self._pool = ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()
        for writer in self._writers.values():
            writer.close()

    def add(self, part: str, file: str, first: int, columns: Columns) -> None:
        """Write the records ``first``, ``first + 1``, ... of a file.

        Raises:
            DataError: an image is broken (unless ``skip_broken``), or differs in size.
        """
        arrays: dict[str, Array | list[Pixels | None]] = {}
        count = len(next(iter(columns.values())))
        kept = np.ones(count, bool)
        images = {n: values for n, values in columns.items() if not isinstance(values, np.ndarray)}
        for name, values in columns.items():
            if isinstance(values, np.ndarray):
                arrays[name] = values
            else:
                arrays[name] = decoded = self._decoded(name, values, file, first)
                kept &= [image is not None for image in decoded]
        # A record with a broken image is left out with all its columns.
        places = np.flatnonzero(kept)
        self._check_masks(images, file, first, places)
        self._broken += count - len(places)
        if not len(places):
            return
        whole = {name: _rows(values, places) for name, values in arrays.items()}
        if part not in self._writers:
            (self._scratch / part).mkdir()
            self._writers[part] = ArrayWriter(self._scratch / part, f"{file}, {part} part")
            self._origins[part] = Origins()
        writer = self._writers[part]
        for place, record in enumerate(places):
            self._origins[part].add(writer.samples + place, file, first + int(record))
        targets = [whole.pop(name) for name in self._targets]
        last = first + count - 1
        writer.add(
            _inputs(whole),
            targets[0] if len(targets) == 1 else np.stack(targets, axis=1),
            f"{file}, records {first} to {last}",
        )
        self._progress.update(f"reading {part}", writer.samples, writer.samples)

    def source(
        self, classes: tuple[str, ...], description: str, names: Sequence[str]
    ) -> ArraySource:
        """Return all records.

        Args:
            classes: class names in label order.
            description: origin of the records.
            names: names of the expected parts.

        Raises:
            DataError: a part has no record, or the parts differ in shape or type.
        """
        self._left_out.tell_rest()
        parts: dict[str, Part] = {}
        for name in names:
            if name not in self._writers:
                raise DataError(f"{description}: expected records in the {name} part, found none")
            self._writers[name].close()
            parts[name] = check_part(name, *self._writers[name].arrays())
        check_together(parts)
        return ArraySource(
            parts=parts,
            classes=classes,
            description=description,
            resized=frozenset(self._resized) if self._settings.image_size else frozenset(),
            origins=self._origins,
            broken=self._broken,
        )

    def _check_masks(
        self, images: Mapping[str, Sequence[bytes]], file: str, first: int, places: Array
    ) -> None:
        """Check that each mask has the size of its image."""
        inputs = [name for name in images if name not in self._targets]
        for mask in self._targets if len(inputs) == 1 else ():
            for place in places if mask in images else ():
                where = f"of {file}, record {first + place}"
                size = upright_size(images[inputs[0]][place], name=where)
                found = upright_size(images[mask][place], name=where)
                if size != found:
                    raise DataError(
                        f"the mask {where} is {found[0]}x{found[1]}, its image "
                        f"{size[0]}x{size[1]}: expected the same size"
                    )

    def _decoded(
        self, column: str, contents: Sequence[bytes], file: str, first: int
    ) -> list[Pixels | None]:
        """Return images of equal size, with None for skipped ones."""
        images: list[Pixels | None] = []
        for place, image in enumerate(self._decode_all(column, contents, file, first)):
            if isinstance(image, DataError):
                if not self._settings.skip_broken:
                    raise image
                self._left_out.add(image)
                images.append(None)
                continue
            name = f"{file}, record {first + place}"
            earlier, shape = self._first.setdefault(column, (name, image.shape))
            if image.shape != shape:
                raise DataError(
                    f"images differ in size: {column!r} of {earlier} is {shape[0]}x{shape[1]}, of "
                    f"{name} {image.shape[0]}x{image.shape[1]}. Set data.image_size=[height, width]."
                )
            images.append(image)
        return images

    def _decode_all(
        self, column: str, contents: Sequence[bytes], file: str, first: int
    ) -> Iterator[Pixels | DataError]:
        settings, is_target = self._settings, column in self._targets
        if not is_target:
            self._resized.add(column)

        def decode(place: int) -> Pixels | DataError:
            name = f"of {file}, record {first + place}, {column!r}"
            try:
                if is_target:
                    return decode_mask(contents[place], settings.image_size, name=name)
                return decode_image(contents[place], settings.color, settings.image_size, name=name)
            except DataError as error:
                return error

        return self._pool.map(decode, range(len(contents)))


def _rows(values: Array | list[Pixels | None], places: Array) -> Array:
    if isinstance(values, np.ndarray):
        return values if len(places) == len(values) else values[places]
    return np.stack([image for image in values if image is not None])


def _inputs(columns: Mapping[str, Array]) -> dict[str, Array]:
    """Return the inputs by name; columns of single numbers form one float32 vector."""
    numbers = [values for values in columns.values() if values.ndim == 1]
    inputs = {name: values for name, values in columns.items() if values.ndim > 1}
    if numbers:
        inputs[VECTOR] = np.stack(numbers, axis=1).astype(np.float32)
    return inputs
