"""Weights of classes in the loss of a training."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import numpy as np

from qat_lib.errors import ConfigError
from qatline.components.tasks.task import Array

ClassWeights = Mapping[str, float] | Literal["balanced"]


def weights_by_class(
    given: ClassWeights, classes: Sequence[str], labels: Iterable[Array], key: str
) -> Array:
    """Return the weight of each class, float32 ``(classes,)``.

    Args:
        given: weight by class name, 1 for other classes; or ``balanced``: samples / (classes *
            samples of the class), 1 for a class without samples.
        classes: class names in label order.
        labels: blocks of class indices of the training part; read for ``balanced`` only.
        key: key of the config, for the message.

    Raises:
        ConfigError: the data has no such class.
    """
    if given == "balanced":
        counts = np.zeros(len(classes), np.int64)
        for block in labels:
            counts += np.bincount(np.ravel(block), minlength=len(classes))
        balanced = counts.sum() / (len(classes) * np.maximum(counts, 1))
        return np.where(counts > 0, balanced, 1.0).astype(np.float32)
    names = list(map(str, classes))
    if unknown := [name for name in given if name not in names]:
        raise ConfigError(
            f"{key}: the data has no class {unknown[0]!r}; expected names out of "
            f"{', '.join(names[:20])}{' ...' if len(names) > 20 else ''}"
        )
    return np.array([given.get(name, 1.0) for name in names], np.float32)
