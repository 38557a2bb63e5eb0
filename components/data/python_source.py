"""Source of data returned by a user's function."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from qat_lib.errors import DataError, QatlineError
from qat_lib.support.foreign_errors import describe_error
from qatline.components.data.array_checks import (
    INPUT_NAME,
    ONLY_INPUT,
    Array,
    Part,
    check_part,
    check_together,
)
from qatline.components.data.array_source import ArraySource
from qatline.components.data.folder_listing import PART_NAMES
from qatline.components.settings import DataSettings
from qatline.components.support.events import Progress
from qatline.components.support.user_code import call, import_callable

_CLASSES = "classes"


def read_python(settings: DataSettings, scratch: Path, progress: Progress) -> ArraySource:
    """Call ``data.name`` with ``data.options`` and return its data.

    The function returns a mapping with the parts ``train`` and optionally ``val`` and ``test``, and
    optionally ``classes``, a list of names; or the training part alone. A part is ``(x, y)``, with
    ``x`` an array or a mapping of arrays by input; or batches ``(x, y)``, such as a
    ``tf.data.Dataset``, a ``keras.utils.PyDataset`` or a PyTorch ``DataLoader``. Batches are written
    to disk one after another.

    Args:
        settings: the function, its options, class names and image size.
        scratch: folder for batches.
        progress: receives the batches.

    Raises:
        ConfigError: the function cannot be imported, or it fails.
        DataError: it returns something else, or its batches differ in shape or fail.
    """
    reference = settings.name or ""
    function = import_callable("data.name", reference)
    found = call("data.name", reference, function, **settings.options)
    given = dict(found) if isinstance(found, Mapping) else {"train": found}
    classes = tuple(settings.classes or map(str, given.pop(_CLASSES, ())))
    parts: dict[str, Part] = {}
    for key, value in given.items():
        name = PART_NAMES.get(str(key))
        if name is None or name in parts:
            raise DataError(
                f"{reference}: expected the parts train, val and test, each once; received "
                f"{', '.join(map(str, given))}"
            )
        x, y = _arrays(value, name, reference, scratch, progress)
        parts[name] = check_part(name, x, y)
    if "train" not in parts:
        raise DataError(
            f"{reference}: expected the part train, received {', '.join(map(str, given)) or 'none'}"
        )
    check_together(parts)
    return ArraySource(
        parts=parts, classes=classes, description=reference, size=settings.image_size
    )


def _arrays(
    value: Any, part: str, reference: str, scratch: Path, progress: Progress
) -> tuple[Array | dict[str, Array], Array]:
    """Return inputs and targets of a part; batches are written to disk."""
    if isinstance(value, tuple) and len(value) == 2:
        x, y = value
        inputs = {str(n): _array(v) for n, v in x.items()} if isinstance(x, Mapping) else _array(x)
        return inputs, _array(y)
    folder = scratch / part
    folder.mkdir()
    writer = _Writer(folder, f"{reference}, {part} part")
    try:
        for number, batch in enumerate(_batches(value, reference, part)):
            writer.add(batch, number)
            progress.update(f"reading {part}", number + 1, number + 1)
    except QatlineError:
        raise
    except Exception as error:  # the user's own code
        raise DataError(
            f"{reference}: the {part} part failed after {writer.batches} batches: "
            f"{type(error).__name__}: {describe_error(error)}"
        ) from error
    finally:
        writer.close()
    return writer.arrays()


def _batches(value: Any, reference: str, part: str) -> Iterator[Any]:
    cardinality = getattr(value, "cardinality", None)
    if cardinality is not None and int(cardinality()) == -1:
        raise DataError(f"{reference}: the {part} part repeats without end: remove repeat()")
    if hasattr(value, "__getitem__") and hasattr(value, "__len__"):  # a PyDataset
        return (value[index] for index in range(len(value)))
    if hasattr(value, "__iter__") and not isinstance(value, str | bytes | np.ndarray):
        return iter(value)
    raise DataError(
        f"{reference}: expected the {part} part as (x, y) or as batches (x, y), received a "
        f"{type(value).__name__}"
    )


def _array(value: Any) -> Array:
    """Return a tensor of any framework as an array."""
    if hasattr(value, "detach"):  # PyTorch
        value = value.detach().cpu()
    return np.asarray(value)


@dataclass
class _Column:
    """One input or the targets on disk."""

    stream: BinaryIO
    path: Path
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def array(self, samples: int) -> Array:
        if not samples:
            return np.empty((0, *self.shape), self.dtype)
        return np.memmap(self.path, self.dtype, mode="r", shape=(samples, *self.shape))


@dataclass
class _Writer:
    """Appends batches to one file per input and one for the targets."""

    folder: Path
    where: str
    batches: int = 0
    _samples: int = 0
    _columns: dict[str, _Column] = field(default_factory=dict)
    _is_mapping: bool = False

    def add(self, batch: Any, number: int) -> None:
        """Write a batch.

        Raises:
            DataError: it is not ``(x, y)``, or differs from the first batch.
        """
        where = f"{self.where}, batch {number}"
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            raise DataError(f"{where}: expected (x, y), received {_kind(batch)}")
        x, y = batch
        is_mapping = isinstance(x, Mapping)
        arrays = (
            {str(n): _array(v) for n, v in x.items()} if is_mapping else {ONLY_INPUT: _array(x)}
        )
        for name in arrays:
            if not INPUT_NAME.fullmatch(name):
                raise DataError(
                    f"{where}: expected names of inputs of letters, digits and '_', received "
                    f"{name!r:.100}"
                )
        arrays = {f"x {name}": array for name, array in arrays.items()} | {"y": _array(y)}
        if self.batches and set(arrays) != set(self._columns):
            raise DataError(
                f"{where}: expected the inputs {', '.join(self._columns)}, received "
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
            column.stream.write(np.ascontiguousarray(array).tobytes())
        self._is_mapping = is_mapping
        self._samples += samples.pop()
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

    def arrays(self) -> tuple[Array | dict[str, Array], Array]:
        """Return inputs and targets, memory-mapped.

        Raises:
            DataError: there was no batch.
        """
        if not self.batches:
            raise DataError(f"{self.where}: expected batches, received none")
        inputs = {
            name.removeprefix("x "): column.array(self._samples)
            for name, column in self._columns.items()
            if name != "y"
        }
        targets = self._columns["y"].array(self._samples)
        return (inputs if self._is_mapping else inputs[ONLY_INPUT]), targets


def _kind(batch: Any) -> str:
    length = f" of {len(batch)}" if hasattr(batch, "__len__") else ""
    return f"a {type(batch).__name__}{length}"
