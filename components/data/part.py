"""Interface of a part of a data set, such as ``train``.

It is common to all readers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Indices = npt.NDArray[np.int64]

Batch = Any
"""Inputs of some samples: an array ``(samples, ...)``, or several by name."""

Shape = tuple[int, ...]

Augment = str | Callable[[Any, Any, Any], Any]
"""An augmentation by name, or a function of inputs, targets and seed that returns both."""


Mirrored = Callable[[Any], Any]
"""A function from targets of images to those of the mirrored images."""


class Split(Protocol):
    """A part of a data set: targets, and raw inputs on demand."""

    @property
    def targets(self) -> Array:
        """Targets ``(samples, ...)``, such as int64 class indices; possibly memory-mapped."""

    @property
    def weights(self) -> Array | None:
        """Weights of the samples in a training, float32 ``(samples,)``; None for no weights."""

    def inputs(self, indices: Indices) -> Batch:
        """Return raw inputs ``(len(indices), ...)``."""


@runtime_checkable
class ImageFiles(Split, Protocol):
    """A part of images in files."""

    @property
    def shape(self) -> Shape:
        """Shape of a raw image, ``(height, width, channels)``, uint8."""

    def is_plain(self) -> bool:
        """Return whether the first files need no Pillow: see ``images.is_plain_jpeg``."""

    def encoded(self, indices: Indices) -> Array:
        """Return JPEG and PNG files of the images, which libjpeg decodes to ``inputs``."""


class InputForm(Protocol):
    """Conversion of raw data to a model's input; see ``qat_lib.preprocessing``."""

    @property
    def image_shape(self) -> Shape | Mapping[str, Shape]:
        """Shape of one sample of the input, or of each input by name."""

    def apply(self, batch: Any) -> Any:
        """Return the model's input or inputs for raw data, in float32."""
