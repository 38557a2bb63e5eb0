"""Check a ``.keras`` file before Keras makes a model of it."""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qat_lib.files.archives import check_unpacked, open_archive
from qat_lib.files.hdf5 import stored_bytes
from qat_lib.files.npz import read_npz_headers
from qat_lib.files.regular_files import open_regular
from qat_lib.files.text_files import JSON_BYTES

MAX_LAYERS = 20_000
MAX_DEPTH = 400
"""Levels of lists and mappings in a configuration: about 4 for each model nested in another."""

_CONFIG = "config.json"
_HDF5, _NPZ = "model.weights.h5", "model.weights.npz"


@dataclass(frozen=True, kw_only=True)
class KerasArchive:
    """What a ``.keras`` file says about itself.

    Attributes:
        weight_bytes: bytes of all its weights in memory.
        holds_code: whether it holds Python code, as a Lambda layer of an unnamed function does.
    """

    weight_bytes: int
    holds_code: bool


def inspect_archive(path: Path) -> KerasArchive:
    """Read a ``.keras`` file's directory, configuration and weight headers.

    Raises:
        OSError: it can't be read or is no regular file.
        ValueError: it is no such file, is damaged, or asks for more than is allowed.
    """
    with open_regular(path) as stream:
        size = os.fstat(stream.fileno()).st_size
        with open_archive(stream) as archive:
            names = archive.namelist()
            if _CONFIG not in names or not {_HDF5, _NPZ} & set(names):
                raise ValueError(f"it holds no {_CONFIG} or no {_HDF5}, as a .keras file does")
            classes = _classes(archive)
            weights = _hdf5_bytes(archive) if _HDF5 in names else _npz_bytes(archive)
        check_unpacked(weights, size)
    return KerasArchive(weight_bytes=weights, holds_code="__lambda__" in classes)


def _classes(archive: zipfile.ZipFile) -> set[str]:
    """Return the class names in the configuration.

    Its size and depth are checked.
    """
    if archive.getinfo(_CONFIG).file_size > JSON_BYTES:
        raise ValueError(f"its {_CONFIG} has more than {JSON_BYTES:,} bytes")
    try:
        config = json.loads(_read(archive, _CONFIG))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"its {_CONFIG} is no JSON ({error})") from error
    if not isinstance(config, dict) or not isinstance(config.get("config"), dict):
        raise ValueError(f"its {_CONFIG} describes no model")
    names: set[str] = set()
    layers = 0
    for value in _mappings(config):
        name = value.get("class_name")
        names.add(name if isinstance(name, str) else "")
        layers += "build_config" in value or "inbound_nodes" in value
    if layers > MAX_LAYERS:
        raise ValueError(
            f"its {_CONFIG} describes {layers:,} layers, expected at most {MAX_LAYERS:,}"
        )
    return names


def _mappings(config: Any) -> Iterator[dict[str, Any]]:
    """Yield every mapping at any depth."""
    level = [config]
    for _ in range(MAX_DEPTH):
        yield from (value for value in level if isinstance(value, dict))
        level = [item for value in level for item in _items(value)]
        if not level:
            return
    raise ValueError(f"its {_CONFIG} is nested deeper than {MAX_DEPTH} levels")


def _items(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list):
        yield from value


def _hdf5_bytes(archive: zipfile.ZipFile) -> int:
    return stored_bytes(io.BytesIO(_read(archive, _HDF5)))


def _npz_bytes(archive: zipfile.ZipFile) -> int:
    with open_archive(io.BytesIO(_read(archive, _NPZ))) as arrays:
        return read_npz_headers(arrays)


def _read(archive: zipfile.ZipFile, name: str) -> bytes:
    try:
        return archive.read(name)
    except (zipfile.BadZipFile, EOFError, OSError, NotImplementedError, RuntimeError) as error:
        raise ValueError(f"its member {name} is damaged ({error})") from error
