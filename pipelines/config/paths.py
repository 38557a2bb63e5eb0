"""Resolution of relative paths in a config, and of weights next to the data."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PATH_KEYS: tuple[tuple[str, ...], ...] = (
    ("output",),
    ("data", "path"),
    ("model", "name"),
    ("model", "weights"),
    ("quantization", "spec"),
)
"""Keys with a path; ``cluster.images.files`` is a list of paths."""


def absolute_paths(layer: Mapping[str, Any], base: Path) -> dict[str, Any]:
    """Return a layer of a config with its relative paths resolved against ``base``."""
    result = copy.deepcopy(dict(layer))
    for section, *rest in PATH_KEYS:
        if not rest:
            if isinstance(result.get(section), str) and "://" not in result[section]:
                result[section] = str(_resolve(result[section], base))
            continue
        inner = result.get(section)
        value = inner.get(rest[0]) if isinstance(inner, dict) else None
        if isinstance(value, str) and _is_path(section, rest[0], value):
            result[section] = {**result[section], rest[0]: str(_resolve(value, base))}
    _resolve_image_files(result, base)
    return result


def _resolve_image_files(layer: dict[str, Any], base: Path) -> None:
    inner: Any = layer
    for key in ("cluster", "images"):
        inner = inner.get(key) if isinstance(inner, dict) else None
    files = inner.get("files") if isinstance(inner, dict) else None
    if isinstance(files, list):
        inner["files"] = [
            str(_resolve(file, base)) if isinstance(file, str) else file for file in files
        ]


def weights_beside_data(values: dict[str, Any]) -> dict[str, Any]:
    """Replace a missing weights file by the one in the folder of the data, if it exists."""
    model, data = values.get("model"), values.get("data")
    weights = model.get("weights") if isinstance(model, dict) else None
    path = data.get("path") if isinstance(data, dict) else None
    if not isinstance(model, dict) or not isinstance(weights, str) or not isinstance(path, str):
        return values
    if "://" in weights + path or Path(weights).exists():
        return values
    beside = Path(path).parent / Path(weights).name
    return {**values, "model": {**model, "weights": str(beside)}} if beside.is_file() else values


def _is_path(section: str, key: str, value: str) -> bool:
    if "://" in value:  # s3://bucket/key and the like
        return False
    if (section, key) == ("model", "name"):
        return value.endswith((".keras", ".h5"))
    if (section, key) == ("model", "weights"):
        return value != "imagenet"
    return True


def _resolve(value: str, base: Path) -> Path:
    # normpath instead of resolve(): symbolic links keep the user's name.
    return Path(os.path.normpath(base / Path(value).expanduser()))
