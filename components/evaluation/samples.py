"""The samples on which an engine differs most from FP32, as pictures."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
_LEAST_PIXELS = 96


class WorstSamples:
    """Keep the samples with the largest differences while a data set streams by.

    Args:
        count: how many to keep.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._heap: list[tuple[float, int, dict[str, Any], Array]] = []

    def add(
        self, differences: Array, images: Array, facts: Sequence[dict[str, Any]], first_index: int
    ) -> None:
        """Offer a batch: differences (n,), images (n, h, w, c), and what to say about each sample."""
        for i in np.argsort(differences)[::-1][: self._count]:
            item = (float(differences[i]), -(first_index + int(i)), facts[i], images[i])
            if len(self._heap) < self._count:
                heapq.heappush(self._heap, (*item[:3], item[3].copy()))
            elif item[:2] > self._heap[0][:2]:
                heapq.heapreplace(self._heap, (*item[:3], item[3].copy()))

    def write(self, directory: Path, prefix: str) -> list[dict[str, Any]]:
        """Write the pictures as ``<prefix>_<index>.png`` and return the list, largest difference first."""
        directory.mkdir(exist_ok=True)
        rows = []
        for difference, index, facts, image in sorted(
            self._heap, key=lambda item: item[:2], reverse=True
        ):
            name = f"{prefix}_{-index}.png"
            write_picture(directory / name, image)
            file = f"{directory.name}/{name}"
            rows.append({"index": -index, "difference": difference, "file": file, **facts})
        return rows


def write_picture(path: Path, image: Array) -> None:
    """Write an image (h, w, 1 or 3) of any range as PNG, stretched to its own range; small ones are enlarged."""
    from PIL import Image

    values = image.astype(np.float64)
    low, high = float(values.min()), float(values.max())
    pixels = ((values - low) / max(high - low, 1e-12) * 255).round().astype(np.uint8)
    factor = max(1, -(-_LEAST_PIXELS // max(pixels.shape[:2])))
    pixels = pixels.repeat(factor, axis=0).repeat(factor, axis=1)
    Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels[..., :3]).save(
        path, format="PNG"
    )
