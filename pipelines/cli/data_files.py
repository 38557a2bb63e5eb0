"""Load data for single-file commands and check it against the model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qat_lib.errors import DataError

_BLOCK = 256  # samples looked at together


def check_inputs(model: Any, inputs: Any, path: Path) -> None:
    """Check that arrays can be fed to a model.

    Args:
        model: Keras model.
        inputs: samples of its only input, or of each input by name.
        path: where they are from, for messages.

    Raises:
        DataError: The names of the inputs differ, or an array has another shape, no samples, or a
            value that is not finite.
    """
    taken = {tensor.name.partition(":")[0]: tuple(tensor.shape) for tensor in model.inputs}
    if not isinstance(inputs, Mapping):
        if len(taken) != 1:
            raise DataError(
                f"Expected arrays for the inputs {', '.join(taken)} of {model.name}. Received one "
                f"array in {path}: give a .npz file with an array of each name."
            )
        inputs = dict.fromkeys(taken, inputs)
    if set(inputs) != set(taken):
        raise DataError(
            f"Expected arrays for the inputs {', '.join(taken)} of {model.name}. Received "
            f"{', '.join(inputs)} in {path}."
        )
    for name, array in inputs.items():
        _check_input(array, taken[name], model.name, path)


def first_inputs(inputs: Any, count: int) -> Any:
    """Return the first samples of an array, or of each of several by name."""
    if isinstance(inputs, Mapping):
        return {name: array[:count] for name, array in inputs.items()}
    return inputs[:count]


def _check_input(array: Any, expected: tuple[int | None, ...], model: str, path: Path) -> None:
    fits = len(expected) == array.ndim and all(
        want in (None, got) for want, got in zip(expected[1:], array.shape[1:], strict=True)
    )
    if array.dtype.kind not in "biuf":
        raise DataError(
            f"Expected model inputs that are numbers. Received {array.dtype} in {path}."
        )
    if not fits:
        shape = "x".join("n" if size is None else str(size) for size in expected)
        raise DataError(
            f"Expected model inputs of shape {shape}, as {model} takes them. "
            f"Received {'x'.join(map(str, array.shape))} in {path}."
        )
    if not len(array):
        raise DataError(f"Expected at least one sample. Received an array without any in {path}.")
    if not _all_finite(array):
        raise DataError(
            f"Expected model inputs that are finite in float32. Received NaN or infinity in {path}."
        )


def _all_finite(inputs: Any) -> bool:
    """Whether every value is a number in float32, in blocks.

    The array may be a file larger than the memory.
    """
    import numpy as np

    blocks = (inputs[start : start + _BLOCK] for start in range(0, len(inputs), _BLOCK))
    with np.errstate(over="ignore"):
        return all(np.isfinite(block.astype(np.float32)).all() for block in blocks)
