"""Load data for single-file commands and check it against the model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from qat_lib.errors import DataError
from qatline.components.support.other_tasks import OTHER_TASKS

if TYPE_CHECKING:
    from qatline.components.data.labelled import Labelled

_BLOCK = 256  # samples looked at together


def check_inputs(model: Any, inputs: Any, path: Path) -> None:
    """Check that an array can be fed to a model.

    Raises:
        DataError: The model has several inputs, or the array has another shape, no samples, or a
            value that is not finite.
    """
    if len(model.inputs) != 1:
        raise DataError(
            f"{model.name} has {len(model.inputs)} inputs, a .npy holds one. {OTHER_TASKS}"
        )
    expected = tuple(model.inputs[0].shape)
    fits = len(expected) == inputs.ndim and all(
        want in (None, got) for want, got in zip(expected[1:], inputs.shape[1:], strict=True)
    )
    if inputs.dtype.kind not in "biuf":
        raise DataError(
            f"Expected model inputs that are numbers. Received {inputs.dtype} in {path}."
        )
    if not fits:
        shape = "x".join("n" if size is None else str(size) for size in expected)
        raise DataError(
            f"Expected model inputs of shape {shape}, as {model.name} takes them. "
            f"Received {'x'.join(map(str, inputs.shape))} in {path}."
        )
    if not len(inputs):
        raise DataError(f"Expected at least one sample. Received an array without any in {path}.")
    if not _all_finite(inputs):
        raise DataError(
            f"Expected model inputs that are finite in float32. Received NaN or infinity in {path}."
        )


def check_labels_fit(data: Labelled, classes: int, path: Path) -> None:
    """Check that each label is one of a model's classes.

    Raises:
        DataError: One is not.
    """
    if (largest := int(data.targets.max())) >= classes:
        raise DataError(
            f"Expected labels from 0 to {classes - 1}: the model has {classes} outputs. "
            f"Received {largest} with {path}."
        )


def _all_finite(inputs: Any) -> bool:
    """Whether every value is a number in float32, in blocks.

    The array may be a file larger than the memory.
    """
    import numpy as np

    blocks = (inputs[start : start + _BLOCK] for start in range(0, len(inputs), _BLOCK))
    with np.errstate(over="ignore"):
        return all(np.isfinite(block.astype(np.float32)).all() for block in blocks)
