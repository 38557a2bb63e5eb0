"""Interface of a part of a data set, such as ``train``.

It is common to all readers.
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
    """Conversion of raw images to a model's input; see ``qat_lib.preprocessing.Preprocessing``."""

    @property
    def image_shape(self) -> tuple[int, ...]:
        """Shape of one sample of the input."""

    def apply(self, batch: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Return the model's input for raw images."""
