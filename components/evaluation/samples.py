"""Samples with the largest difference between engine and FP32."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qatline.components.artifacts import Evaluation
from qatline.components.artifacts.evaluation import WorstSample

Array = NDArray[Any]
_LEAST_PIXELS = 96


@dataclass(frozen=True, kw_only=True)
class ShownSample:
    """A sample's target and the predictions of FP32 and the engine, in words and as a picture.

    Attributes:
        picture: ``(height, width, 1 or 3)``; None if no input is an image.
    """

    true: str
    fp32: str
    engine: str
    picture: Array | None


class WorstSamples:
    """Collects the samples with the largest differences in a stream.

    Args:
        count: number of samples to keep.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._heap: list[tuple[float, int, ShownSample]] = []

    def add(self, differences: Array, first_index: int, show: Callable[[int], ShownSample]) -> None:
        """Add a batch.

        Args:
            differences: difference of each sample, ``(samples,)``.
            first_index: index of the batch's first sample.
            show: returns a sample of the batch; called for samples to keep only.
        """
        for i in np.argsort(differences)[::-1][: self._count]:
            # Negative, unique indices: equal differences prefer the first sample and never compare
            # samples.
            place = (float(differences[i]), -(first_index + int(i)))
            if len(self._heap) < self._count:
                heapq.heappush(self._heap, (*place, show(int(i))))
            elif place > self._heap[0][:2]:
                heapq.heapreplace(self._heap, (*place, show(int(i))))

    def write(self, evaluation: Evaluation, prefix: str) -> list[WorstSample]:
        """Write the pictures as ``<prefix>_<index>.png``; return samples, worst first."""
        found = []
        for difference, index, shown in sorted(self._heap, key=lambda item: item[:2], reverse=True):
            file = ""
            if shown.picture is not None:
                path = evaluation.picture_file(f"{prefix}_{-index}.png")
                write_picture(path, shown.picture)
                file = path.relative_to(evaluation.path).as_posix()
            sample = WorstSample(
                index=-index,
                difference=difference,
                file=file,
                label=shown.true,
                fp32=shown.fp32,
                engine=shown.engine,
            )
            found.append(sample)
        return found


def write_picture(path: Path, image: Array) -> None:
    """Write an image (h, w, 1 or 3) as range-normalized PNG; small images are enlarged."""
    from PIL import Image

    path.parent.mkdir(exist_ok=True)
    values = image.astype(np.float64)
    low, high = float(values.min()), float(values.max())
    pixels = ((values - low) / max(high - low, 1e-12) * 255).round().astype(np.uint8)
    factor = max(1, -(-_LEAST_PIXELS // max(pixels.shape[:2])))
    pixels = pixels.repeat(factor, axis=0).repeat(factor, axis=1)
    Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels[..., :3]).save(
        path, format="PNG"
    )
