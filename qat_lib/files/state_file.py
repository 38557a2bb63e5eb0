"""State of a training as one file without pickle: numbers, texts, lists, mappings and arrays."""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

_TREE, _ARRAYS = "state.json", "arrays.bin"
# RuntimeError: a member is flagged as encrypted or with an unknown compression.
_DAMAGE = (zipfile.BadZipFile, KeyError, TypeError, EOFError, zlib.error, RuntimeError)


def write_state(target: Path | BinaryIO, state: Any) -> None:
    """Write a state with a checksum for each part.

    Args:
        target: the file.
        state: None, bool, int, float, str, an array, or lists and mappings of them.

    Raises:
        OSError: the file cannot be written.
        TypeError: the state contains another type.
    """
    arrays: list[np.ndarray] = []
    tree = json.dumps(_packed(state, arrays))
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(_TREE, tree)
        with archive.open(_ARRAYS, "w", force_zip64=True) as stream:
            for array in arrays:
                stream.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def read_state(source: Path | BinaryIO) -> Any:
    """Read a file of ``write_state``; tuples become lists.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is damaged or has another format.
    """
    try:
        with zipfile.ZipFile(source) as archive:
            tree = json.loads(archive.read(_TREE))
            content = archive.read(_ARRAYS)
        return _Unpacking(content).value(tree)
    except _DAMAGE as error:
        raise ValueError(f"it is damaged: {error}") from error


def _packed(value: Any, arrays: list[np.ndarray]) -> Any:
    """Return a value as JSON types; append its arrays to ``arrays``."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.ndarray | np.generic):
        arrays.append(np.asarray(value))
        return {"array": [value.dtype.name, list(value.shape)]}
    if isinstance(value, Mapping):
        # Pairs instead of an object: JSON would turn integer keys into texts.
        pairs = [[key, _packed(each, arrays)] for key, each in value.items()]
        return {"pairs": pairs}
    if isinstance(value, list | tuple):
        return [_packed(each, arrays) for each in value]
    raise TypeError(f"expected numbers, texts, arrays, lists or mappings; received {type(value)}")


class _Unpacking:
    """Reads consecutive arrays from a file's content."""

    def __init__(self, content: bytes) -> None:
        self._content, self._place = content, 0

    def value(self, packed: Any) -> Any:
        """Return the original value."""
        if isinstance(packed, list):
            return [self.value(each) for each in packed]
        if not isinstance(packed, dict):
            return packed
        if "pairs" in packed:
            return {key: self.value(each) for key, each in packed["pairs"]}
        name, shape = packed["array"]
        return self._array(np.dtype(name), tuple(shape))

    def _array(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray:
        start = self._place
        self._place += int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        found = np.frombuffer(self._content[start : self._place], np.uint8).copy()
        return cast("np.ndarray", found.view(dtype).reshape(shape))
