"""Interface of sources, and the assignment of samples to parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from qatline.components.artifacts import Dataset
from qatline.components.artifacts.data_info import SPLITS, InputInfo
from qatline.components.data.array_checks import Array
from qatline.components.data.splits import Indices, split_indices, stratified_subset
from qatline.components.settings import DataSettings
from qatline.components.support.events import Progress


@dataclass(frozen=True, kw_only=True)
class Samples:
    """Samples of a source: their part and their indices in it."""

    part: str
    indices: Indices


class LeftOut:
    """Warnings about problems in a data set: one for each of the first, and one for the rest.

    Args:
        progress: receives the warnings.
        done: first words of each warning. Default: "left out".

    Attributes:
        count: number of problems.
    """

    SHOWN = 5

    def __init__(self, progress: Progress, done: str = "left out") -> None:
        self._progress, self._done = progress, done
        self.count = 0

    def add(self, problem: object) -> None:
        """Count a problem, and warn of it unless there were many."""
        self.count += 1
        if self.count <= self.SHOWN:
            self._progress.warn(f"{self._done}: {problem}")

    def tell_rest(self) -> None:
        """Warn of the number of problems beyond the first."""
        if self.count > self.SHOWN:
            self._progress.warn(f"{self._done}: {self.count - self.SHOWN} more like these")


class Source(Protocol):
    """A checked source with the part ``train`` and optionally ``validation`` and ``test``."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names in label order; empty if the source has none."""

    @property
    def targets(self) -> Mapping[str, Array]:
        """Targets of each part as read, ``(samples, ...)``; possibly memory-mapped."""

    @property
    def weights(self) -> Array | None:
        """Weights of the samples of the part ``train``, float32 ``(samples,)``; None for none."""

    @property
    def inputs(self) -> Mapping[str, InputInfo]:
        """Shape and data type of each input as written."""

    @property
    def description(self) -> str:
        """Origin of the data, for display."""

    @property
    def root(self) -> str | None:
        """The folder of the images; None if ``write`` copies the inputs."""

    @property
    def broken(self) -> int:
        """Number of skipped samples."""

    def scale(self, name: str) -> float:
        """Return the default factor on an input's values."""

    def resize(self, name: str) -> str | None:
        """Return the method of resizing to the input's shape, or None without resizing."""

    def sample(self, part: str, index: int) -> str:
        """Return the name of a sample for messages, such as the path of its file."""

    def fingerprint(self) -> str:
        """Return the SHA-256 of the whole content."""

    def write(
        self, dataset: Dataset, split: str, samples: Samples, progress: Progress
    ) -> list[bytes]:
        """Write the inputs of ``samples`` as the split ``split``; return a digest of each."""


def deal(
    strata: Mapping[str, Indices], settings: DataSettings, *, seed: int, classes: Sequence[str]
) -> dict[str, Samples]:
    """Assign samples to train, calibration, validation and test.

    Args:
        strata: class index of each sample of each part of the source; zeros for targets other than
            classes.
        settings: fractions, number of calibration samples, and limit.
        seed: seed of the split.
        classes: names, for messages.

    Returns:
        The samples of each split.

    Raises:
        DataError: there are too few samples.
    """
    count = max(1, len(classes))
    total = sum(map(len, strata.values()))
    # The limit reduces all parts by the same share.
    share = min(1.0, settings.limit / total) if settings.limit else 1.0
    kept = {
        part: stratified_subset(labels, round(share * len(labels)), seed=seed, classes=count)
        for part, labels in strata.items()
    }
    own = frozenset(kept) - {"train"}
    parts = split_indices(
        strata["train"][kept["train"]], settings, seed=seed, classes=classes, own=own
    )
    dealt = {}
    for name, indices in parts.items():
        dealt[name] = Samples(part="train", indices=kept["train"][indices])
    # A stream apart from that of the split: a further part does not change the others.
    generator = np.random.default_rng([seed, 0x0DEA])
    for name in sorted(own):
        dealt[name] = Samples(part=name, indices=generator.permutation(kept[name]))
    return {name: dealt[name] for name in SPLITS}
