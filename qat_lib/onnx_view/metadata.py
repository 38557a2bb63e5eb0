"""Metadata entries of the export in an ONNX file, under one prefix."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qat_lib.errors import ExportError
from qat_lib.files.text_files import parse_json

PREFIX = "qatline."


def read_metadata(proto: Any) -> dict[str, str]:
    """Return the ``qatline.*`` metadata of a ModelProto, without the prefix.

    The result is empty for a file of another producer.
    """
    found = {}
    for entry in proto.metadata_props:
        if entry.key.startswith(PREFIX):
            found[entry.key.removeprefix(PREFIX)] = entry.value
    return found


def read_names(metadata: Mapping[str, str], key: str) -> dict[str, str]:
    """Return a metadata entry that maps names to names, such as ``layout``; empty if absent.

    Raises:
        ExportError: the entry is damaged.
    """
    names = read_object(metadata, key)
    if not all(isinstance(name, str) for name in names.values()):
        raise damaged(key, "names")
    return names


def read_object(metadata: Mapping[str, str], key: str) -> dict[str, Any]:
    """Return a metadata entry as a JSON object; empty if absent.

    Raises:
        ExportError: the entry is damaged.
    """
    source = f"The metadata {PREFIX}{key}"
    found = parse_json(metadata.get(key, "{}"), source, error=ExportError, unique=False)
    if not isinstance(found, dict):
        raise damaged(key, "names")
    return found


def damaged(key: str, of: str) -> ExportError:
    """Return the error for an entry that is not an object of ``of``."""
    return ExportError(
        f"The metadata {PREFIX}{key}: expected a JSON object of {of}. Export the model again."
    )
