"""Interface of image sources, and the assignment of samples to parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from qatline.components.artifacts import Dataset
from qatline.components.artifacts.data_info import SPLITS
from qatline.components.data.splits import Indices, split_indices, stratified_subset
from qatline.components.settings import DataSettings
from qatline.components.support.events import Progress


@dataclass(frozen=True, kw_only=True)
class Samples:
    """Samples of a source: their part and their indices in it."""

    part: str
    indices: Indices


class Source(Protocol):
    """A checked source with the part ``train`` and optionally ``validation`` and ``test``."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Names in label order."""

    @property
    def labels(self) -> Mapping[str, Indices]:
        """Labels of each part."""

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """``(height, width, channels)`` of the returned images."""

    @property
    def dtype(self) -> str:
        """Data type of the returned pixels: ``uint8`` or ``float32``."""

    @property
    def scale(self) -> float:
        """Default factor on pixels."""

    @property
    def resize(self) -> str | None:
        """Method of resizing to ``image_shape``, or None without resizing."""

    @property
    def description(self) -> str:
        """Origin of the images, for display."""

    @property
    def root(self) -> str | None:
        """The folder of the images; None if ``write`` copies them."""

    @property
    def broken(self) -> int:
        """Number of skipped images."""

    def fingerprint(self) -> str:
        """Return the SHA-256 of the whole content."""

    def write(
        self, dataset: Dataset, split: str, samples: Samples, progress: Progress
    ) -> list[bytes]:
        """Write ``samples`` as the split ``split``; return a digest of each image."""


def deal(source: Source, settings: DataSettings, *, seed: int) -> dict[str, Samples]:
    """Assign samples to train, calibration, validation and test.

    Returns:
        The samples of each split.

    Raises:
        DataError: there are too few samples.
    """
    total = sum(map(len, source.labels.values()))
    share = min(1.0, settings.limit / total) if settings.limit else 1.0
    kept = {
        part: stratified_subset(
            labels, round(share * len(labels)), seed=seed, classes=len(source.classes)
        )
        for part, labels in source.labels.items()
    }
    own = frozenset(kept) - {"train"}
    parts = split_indices(
        source.labels["train"][kept["train"]], settings, seed=seed, classes=source.classes, own=own
    )
    dealt = {}
    for name, indices in parts.items():
        dealt[name] = Samples(part="train", indices=kept["train"][indices])
    generator = np.random.default_rng([seed, 0x0DEA])
    for name in sorted(own):
        dealt[name] = Samples(part=name, indices=generator.permutation(kept[name]))
    return {name: dealt[name] for name in SPLITS}
