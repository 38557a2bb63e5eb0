"""Default task of a data set, derived from its targets."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from qat_lib.errors import DataError
from qatline.components.tasks.classification import ONE_HOT, Classification
from qatline.components.tasks.detection import TARGET, Detection
from qatline.components.tasks.multilabel import MultiLabel
from qatline.components.tasks.regression import Regression
from qatline.components.tasks.segmentation import Segmentation


def derive_task(targets: NDArray[Any], outputs: int = 1) -> str:
    """Return the name of the built-in task that fits the training targets.

    One integer per sample means classes, floats mean regression, 0 and 1 in columns mean
    multi-label classification, integer images mean segmentation, and rows of six floats mean
    detection. Floats that are exactly the class indices 0, 1, 2, ... are classes, too.

    Args:
        targets: targets as read, ``(samples, ...)``.
        outputs: values per sample in the network's output, if known. With several, one whole float
            per sample is a class, too.

    Raises:
        DataError: no task fits, or several do.
    """
    shape, is_float = targets.shape, targets.dtype.kind == "f"
    if len(shape) == 1 or (len(shape) == 2 and shape[1] == 1):
        is_class = not is_float or _are_indices(targets, every=outputs < 2)
        return Classification.name if is_class else Regression.name
    if len(shape) == 2 and np.isin(targets, (0, 1)).all():
        if (targets.sum(axis=1) == 1).all():
            raise DataError(f"train targets: received {shape} of 0 and 1, one 1 per row. {ONE_HOT}")
        return MultiLabel.name
    if len(shape) == 2 and is_float:
        return Regression.name
    if len(shape) == 3 and shape[2] == TARGET and is_float:
        return Detection.name
    is_mask = len(shape) == 3 or (len(shape) == 4 and shape[3] == 1)
    if is_mask and targets.dtype.kind in "iu":
        return Segmentation.name
    raise DataError(
        f"train targets: no task fits {targets.dtype} {shape}. Set task.name to a built-in task "
        "or to module:Class."
    )


def _are_indices(targets: NDArray[Any], *, every: bool) -> bool:
    """Return whether targets are class indices; with ``every``, without a gap."""
    values = np.unique(targets)
    if every:
        return len(values) > 1 and np.array_equal(values, np.arange(len(values)))
    return bool(np.isfinite(values).all() and (values == np.floor(values)).all())
