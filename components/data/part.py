"""One part of a data set, such as ``train``.

What its readers have in common, wherever the images lie.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Labels = npt.NDArray[np.int64]


class Split(Protocol):
    """One part of a data set: all labels, and raw pixels on demand."""

    @property
    def labels(self) -> Labels:
        """Label of each sample, int64 ``(samples,)``."""

    def pixels(self, indices: Labels) -> npt.NDArray[Any]:
        """Return raw images ``(len(indices), height, width, channels)``."""
