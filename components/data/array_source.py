"""Source of arrays, in memory or memory-mapped."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from qatline.components.artifacts import Dataset
from qatline.components.data.array_checks import CHUNK_BYTES, Part, chunks
from qatline.components.data.images import resize_array
from qatline.components.data.source import Samples
from qatline.components.data.splits import Indices
from qatline.components.support.events import Progress

# Maximum number of images to convert at once, within CHUNK_BYTES.
_BLOCK = 1024


@dataclass(frozen=True, kw_only=True)
class ArraySource:
    """Checked arrays; see ``qatline.components.data.source.Source`` for the properties.

    Args:
        parts: ``train``, and optionally ``validation`` and ``test``.
        classes: names in label order.
        description: origin of the arrays.
        size: target ``(height, width)``; None keeps the size of the arrays.
        pixel_scale: default factor on pixels; None is 1/255 for uint8 and 1 for floats.
    """

    parts: Mapping[str, Part]
    classes: tuple[str, ...]
    description: str
    size: tuple[int, int] | None = None
    pixel_scale: float | None = None
    root: str | None = None
    broken: int = 0

    @property
    def labels(self) -> Mapping[str, Indices]:
        """Labels of each part."""
        return {name: part.y for name, part in self.parts.items()}

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Shape of an image after resizing."""
        height, width, channels = self.parts["train"].x.shape[1:]
        return (*(self.size or (height, width)), channels)

    @property
    def dtype(self) -> str:
        """``uint8``, or ``float32`` for every floating type."""
        return "uint8" if self.parts["train"].x.dtype == np.uint8 else "float32"

    @property
    def scale(self) -> float:
        """Default factor on pixels."""
        return self.pixel_scale or (1 / 255 if self.dtype == "uint8" else 1.0)

    @property
    def resize(self) -> str | None:
        """``bilinear`` if the arrays differ from the target size."""
        return None if self.image_shape == self.parts["train"].x.shape[1:] else "bilinear"

    def fingerprint(self) -> str:
        """Return the SHA-256 of the names, shapes, data types and contents of all parts."""
        digest = hashlib.sha256()
        for name, part in sorted(self.parts.items()):
            digest.update(f"{name} {part.x.dtype.str} {part.x.shape}\n".encode())
            for _, chunk in chunks(part.x):
                digest.update(np.ascontiguousarray(chunk).data)
            digest.update(np.ascontiguousarray(part.y).data)
        return digest.hexdigest()

    def write(
        self, dataset: Dataset, split: str, samples: Samples, progress: Progress
    ) -> list[bytes]:
        """Write images and labels of a part, block by block.

        Blocks are written instead of memory-mapped: on a full disk, a memory map kills the process
        with SIGBUS.
        """
        origin, indices = self.parts[samples.part], samples.indices
        header = {
            "descr": np.lib.format.dtype_to_descr(np.dtype(self.dtype)),
            "fortran_order": False,
            "shape": (len(indices), *self.image_shape),
        }
        digests: list[bytes] = []
        largest = max(self._bytes_of(origin.x.shape[1:]), self._bytes_of(self.image_shape))
        block = min(_BLOCK, max(1, CHUNK_BYTES // largest))
        with dataset.images_file(split).open("wb") as stream:
            np.lib.format.write_array_header_1_0(stream, header)
            for start in range(0, len(indices), block):
                images = origin.x[indices[start : start + block]].astype(self.dtype, order="C")
                if self.resize:
                    images = resize_array(images, self.image_shape[:2])
                stream.write(images.tobytes())
                digests += [hashlib.sha256(image.tobytes()).digest() for image in images]
                progress.update(f"writing {split}", start + len(images), len(indices))
        np.save(dataset.labels_file(split), origin.y[indices])
        return digests

    def _bytes_of(self, shape: tuple[int, ...]) -> int:
        return math.prod(shape) * np.dtype(self.dtype).itemsize
