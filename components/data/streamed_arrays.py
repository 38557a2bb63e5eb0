"""Arrays written to disk batch by batch, with the origin of each sample.

Sources that stream are written once and then read as memory maps.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from qat_lib.errors import DataError
from qatline.components.data.array_checks import INPUT_NAME, ONLY_INPUT, Array


@dataclass
class _Column:
    """One input, the targets or the weights on disk."""

    stream: BinaryIO
    path: Path
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def array(self, samples: int) -> Array:
        if not samples:
            return np.empty((0, *self.shape), self.dtype)
        return np.memmap(self.path, self.dtype, mode="r", shape=(samples, *self.shape))


@dataclass
class ArrayWriter:
    """Appends batches to one file per input and one each for targets and weights.

    Args:
        folder: existing folder for the files.
        where: origin of the batches, for messages.
    """

    folder: Path
    where: str
    batches: int = 0
    samples: int = 0
    _columns: dict[str, _Column] = field(default_factory=dict)
    _is_mapping: bool = False

    def add(self, x: Any, y: Any, where: str, weights: Any = None) -> None:
        """Write a batch.

        Args:
            x: inputs ``(samples, ...)``, or several by name; arrays or tensors of any framework.
            y: targets ``(samples, ...)``.
            where: origin of the batch, for messages.
            weights: weights of the samples ``(samples,)``; None for no weights.

        Raises:
            DataError: the batch is empty, or differs from the first batch.
        """
        is_mapping = isinstance(x, Mapping)
        arrays = (
            {str(n): as_array(v) for n, v in x.items()} if is_mapping else {ONLY_INPUT: as_array(x)}
        )
        for name in arrays:
            if not INPUT_NAME.fullmatch(name):
                raise DataError(
                    f"{where}: expected names of inputs of letters, digits and '_', received "
                    f"{name!r:.100}"
                )
        # With a prefix, since an input may be named ``y`` or ``weights``.
        arrays = {f"x {name}": array for name, array in arrays.items()} | {"y": as_array(y)}
        if weights is not None:
            arrays["weights"] = as_array(weights)
        if self.batches and set(arrays) != set(self._columns):
            raise DataError(
                f"{where}: expected {', '.join(self._columns)} as in the first batch, received "
                f"{', '.join(arrays)}"
            )
        samples = {len(array) if array.ndim else 0 for array in arrays.values()}
        if len(samples) != 1 or samples == {0}:
            raise DataError(
                f"{where}: expected as many inputs as targets, at least one; received "
                + ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
            )
        for name, array in arrays.items():
            column = self._column(name, array)
            if (array.shape[1:], array.dtype) != (column.shape, column.dtype):
                raise DataError(
                    f"{where}: {name} is {array.dtype} {array.shape[1:]} per sample, the first "
                    f"batch's {column.dtype} {column.shape}"
                )
            column.stream.write(np.ascontiguousarray(array).data)
        self._is_mapping = is_mapping
        self.samples += samples.pop()
        self.batches += 1

    def _column(self, name: str, array: Array) -> _Column:
        if name not in self._columns:
            if array.dtype.hasobject:
                raise DataError(f"{self.where}: expected numbers as {name}, received objects")
            path = self.folder / f"{len(self._columns)}.bin"
            self._columns[name] = _Column(path.open("wb"), path, array.shape[1:], array.dtype)
        return self._columns[name]

    def close(self) -> None:
        """Close the files."""
        for column in self._columns.values():
            column.stream.close()

    def arrays(self) -> tuple[Array | dict[str, Array], Array, Array | None]:
        """Return inputs, targets and weights, memory-mapped; None without weights.

        Raises:
            DataError: there was no batch.
        """
        if not self.batches:
            raise DataError(f"{self.where}: expected batches, received none")
        inputs = {
            name.removeprefix("x "): column.array(self.samples)
            for name, column in self._columns.items()
            if name.startswith("x ")
        }
        targets = self._columns["y"].array(self.samples)
        weights = self._columns.get("weights")
        return (
            inputs if self._is_mapping else inputs[ONLY_INPUT],
            targets,
            None if weights is None else weights.array(self.samples),
        )


def as_array(value: Any) -> Array:
    """Return a tensor of any framework as an array."""
    if hasattr(value, "detach"):  # PyTorch
        value = value.detach().cpu()
    return np.asarray(value)


@dataclass
class Origins:
    """Names of samples that come from numbered records of files."""

    _starts: list[int] = field(default_factory=list)
    _records: list[tuple[str, int]] = field(default_factory=list)

    def add(self, start: int, file: str, record: int) -> None:
        """Record that the samples from ``start`` on are the records from ``record`` of ``file``."""
        if self._records:
            name, first = self._records[-1]
            if name == file and record - first == start - self._starts[-1]:
                return
        self._starts.append(start)
        self._records.append((file, record))

    def name(self, sample: int) -> str:
        """Return file and record of a sample."""
        place = bisect_right(self._starts, sample) - 1
        file, first = self._records[place]
        return f"{file}, record {first + sample - self._starts[place]}"
