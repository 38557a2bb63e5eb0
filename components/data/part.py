"""One part of a data set, such as ``train``.

What its readers have in common, wherever the images lie.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Labels = npt.NDArray[np.int64]


class Split(Protocol):
    """A part of a data set: labels, and raw pixels on demand."""

    @property
    def labels(self) -> Labels:
        """Label of each sample, int64 ``(samples,)``."""

    def pixels(self, indices: Labels) -> npt.NDArray[Any]:
        """Return raw images ``(len(indices), height, width, channels)``."""


class InputForm(Protocol):
    """How raw images become a model's input, as ``qat_lib.preprocessing.Preprocessing`` says it."""

    @property
    def image_shape(self) -> tuple[int, ...]:
        """Shape of one sample of the input."""

    def apply(self, batch: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Return the model's input of raw images."""
