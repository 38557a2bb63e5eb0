"""Check a Keras weights file in HDF5 before its datasets are read."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, BinaryIO

MAX_OBJECTS = 200_000


def stored_bytes(source: Path | BinaryIO) -> int:
    """Return the bytes that an HDF5 file's datasets need in memory.

    A dataset that lies outside the file is refused, for it may be any file of the machine.

    Raises:
        ValueError: the file is damaged, reaches outside itself, or holds too many objects.
    """
    import h5py

    try:
        with h5py.File(source, "r") as file:
            return sum(_bytes_of(dataset) for dataset in _datasets(file))
    except (OSError, RuntimeError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"its weights are damaged ({error})") from error


def _datasets(file: Any) -> list[Any]:
    import h5py

    found: list[Any] = []
    waiting, known, seen = [file], set(), 0
    while waiting:
        group = waiting.pop()
        for name in group:
            seen += 1
            if seen > MAX_OBJECTS:
                raise ValueError(f"its weights hold more than {MAX_OBJECTS:,} objects")
            link = group.get(name, getlink=True)
            if not isinstance(link, h5py.HardLink):
                raise ValueError(f"its weights hold a link, {group.name}/{name}, expected datasets")
            item = group[name]
            address = h5py.h5o.get_info(item.id).addr
            if address in known:
                continue
            known.add(address)
            (found if isinstance(item, h5py.Dataset) else waiting).append(item)
    return found


def _bytes_of(dataset: Any) -> int:
    if dataset.is_virtual or dataset.external:
        raise ValueError(f"its weights {dataset.name} lie in another file")
    width = int(dataset.dtype.itemsize)
    # A chunk is unpacked whole, and may be larger than a dataset that can grow.
    chunk: int = math.prod(dataset.chunks or (0,))
    return width * max(int(dataset.size or 0), chunk)
