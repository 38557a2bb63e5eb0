"""Inference of engines over a data set, in their layout and batch size."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from qat_lib.engines import Engine
from qat_lib.engines.spec import parse_profile
from qat_lib.errors import DataError

Array = NDArray[Any]


class Classifier:
    """An engine adapted to the reader's images: float32, NHWC, any sample count.

    Args:
        engine: an engine with one input, NHWC or NCHW.
        image_shape: (height, width, channels) of the images.
        raw: whether the images are raw pixels, for engines with embedded preprocessing.

    Raises:
        DataError: the engine's input does not fit the images.
    """

    def __init__(self, engine: Engine, image_shape: tuple[int, ...], *, raw: bool = False) -> None:
        self.engine = engine
        (info,) = engine.inputs
        if engine.manifest.preprocessing_embedded and not raw:
            raise DataError(
                f"The engine takes raw images ({info}) and preprocesses them itself; the "
                "evaluation sends images that are preprocessed already. Export the model without "
                "embed_preprocessing for the pipeline."
            )
        profile = parse_profile(engine.manifest.spec["shapes"][info.name])
        self._smallest, self._largest = profile.minimum[0], profile.maximum[0]
        shape, moved = profile.optimum[1:], (image_shape[-1], *image_shape[:-1])
        layout = engine.manifest.layout.get(info.name)
        # Without a recorded layout the shape decides; it is ambiguous only if both layouts are
        # equal.
        self._channels_first = layout == "NCHW" or (layout is None and shape != image_shape)
        if shape != (moved if self._channels_first else image_shape):
            raise DataError(
                f"The engine takes images of shape {shape}, the data set has {image_shape} "
                "(height, width, channels). Build the engine from a model that was trained on "
                "this data."
            )

    @property
    def output(self) -> str:
        """Name of the engine's first output, the one returned by calls."""
        return self.engine.outputs[0].name

    @property
    def largest_batch(self) -> int:
        """Largest batch size of the engine."""
        return self._largest

    def nearest_batch(self, size: int) -> int:
        """Return the engine's batch size nearest to ``size``."""
        return min(max(size, self._smallest), self._largest)

    def __call__(self, images: Array) -> Array:
        """Return the engine's first output for ``images``, (samples, classes)."""
        parts = [
            images[start : start + self._largest] for start in range(0, len(images), self._largest)
        ]
        return np.concatenate([self._run(part) for part in parts])

    def _run(self, images: Array) -> Array:
        samples = len(images)
        if samples < self._smallest:  # an engine with a minimum batch: pad, and cut the result
            images = np.concatenate(
                [images, np.repeat(images[-1:], self._smallest - samples, axis=0)]
            )
        if self._channels_first:
            images = np.ascontiguousarray(np.moveaxis(images, -1, 1))
        outputs: Array = self.engine.infer(images)[self.output][:samples]
        return outputs
