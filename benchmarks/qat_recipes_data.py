"""CIFAR-10 images for ``qat_recipes.py``: split, normalized, enlarged."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from qat_lib.preprocessing import Preprocessing
from qatline.components.data.labelled import Labelled
from qatline.components.data.tf_pipeline import build_dataset

CALIBRATION_SAMPLES = 512
PREPROCESSING = Preprocessing(
    image_shape=(32, 32, 3),
    dtype="uint8",
    scale=1 / 255,
    mean=(0.485, 0.456, 0.406),
    std=(0.229, 0.224, 0.225),
)


class CifarData:
    """A seeded split of the images, as ``qatline.components.training`` reads it.

    Args:
        path: the .npz file.
        seed: of the split.
        side: pixels that the images are enlarged to.
        training: number of training samples, at most.
        validation: number of validation samples, at most 1000.
        test: number of test samples, at most.
    """

    classes = 10

    def __init__(
        self, path: Path, seed: int, *, side: int, training: int, validation: int, test: int
    ) -> None:
        self._side = side
        with np.load(path) as arrays:
            x, y = arrays["x_train"], arrays["y_train"].astype(np.int64)
            x_test, y_test = arrays["x_test"], arrays["y_test"].astype(np.int64)
        order = np.random.default_rng(seed).permutation(len(x))
        held, rest = order[:1000], order[1000:]
        calibration, training_ = rest[:CALIBRATION_SAMPLES], rest[CALIBRATION_SAMPLES:]
        self._parts = {
            "validation": Labelled(x=x[held[:validation]], targets=y[held[:validation]]),
            "calibration": Labelled(x=x[calibration], targets=y[calibration]),
            "train": Labelled(x=x[training_[:training]], targets=y[training_[:training]]),
            "test": Labelled(x=x_test[:test], targets=y_test[:test]),
        }

    @property
    def samples(self) -> int:
        """Number of samples to train on."""
        return len(self._parts["train"].targets)

    def train(self, batch_size: int, **options: Any) -> Any:
        """Return the batches of an epoch; the options are those of ``build_dataset``."""
        return self._batches("train", batch_size, **options)

    def validation(self, batch_size: int) -> Any:
        """Return the batches of the validation part."""
        return self._batches("validation", batch_size)

    def test(self) -> Any:
        """Return the batches of the test part."""
        return self._batches("test", 200)

    def calibration(self) -> np.ndarray:
        """Return the inputs to calibrate with."""
        batches = self._batches("calibration", 64).as_numpy_iterator()
        return np.concatenate([x for x, _ in batches])

    def _batches(self, part: str, batch_size: int, **options: Any) -> Any:
        data = build_dataset(self._parts[part], PREPROCESSING, batch_size, **options)
        if self._side == 32:
            return data
        size = (self._side, self._side)
        return data.map(lambda x, y: (tf.image.resize(x, size), y), num_parallel_calls=2)


def accuracy(model: Any, batches: Iterable[tuple[Any, Any]]) -> float:
    """Return the share of right labels, in [0, 1]."""
    run = tf.function(lambda x: model(x, training=False), reduce_retracing=True)
    hits = [np.asarray(tf.argmax(run(x), axis=1) == y) for x, y in batches]
    return float(np.mean(np.concatenate(hits)))
