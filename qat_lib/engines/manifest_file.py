"""Read an untrusted manifest with checks of size, digest and types.

Loading an engine also compares the manifest with the file and with the loaded engine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

import numpy as np

from qat_lib.engines.backend import get_backend
from qat_lib.engines.manifest import DIGEST, FORMAT, EngineManifest, canonical_json, manifest_path
from qat_lib.engines.spec import BACKENDS, BuildSpec
from qat_lib.engines.values import TensorInfo, names_of
from qat_lib.errors import ConfigError, EngineLoadError
from qat_lib.files.regular_files import read_regular
from qat_lib.support.mappings import map_values

if TYPE_CHECKING:
    from pydantic import BaseModel, TypeAdapter

MOST_BYTES = 64 * 2**20
"""Largest accepted manifest. A network with 10,000 nodes needs about 2 MB."""

_AGAIN = "Copy it again together with its engine, or build the engine again."


def read_manifest(engine: Path) -> EngineManifest:
    """Read the manifest of ``engine`` and check it.

    Raises:
        EngineLoadError: the manifest is missing, too large, not JSON, of another format, modified
            after the build, or contains a wrong value.
    """
    path = manifest_path(engine)
    values = _parse(path, _read(engine, path))
    sealed = values.pop(DIGEST, None)
    content = canonical_json(values)
    if sealed != sha256(content).hexdigest():
        raise EngineLoadError(
            f"The manifest {path} was changed since it was written: its digest differs. {_AGAIN}"
        )
    # The canonical text, not the file: the validation covers exactly the sealed values.
    manifest = _typed(path, content)
    problem = next(_problems(manifest), None)
    if problem:
        raise EngineLoadError(f"The manifest {path} is wrong: {problem} {_AGAIN}")
    return manifest


def _read(engine: Path, path: Path) -> bytes:
    try:
        return read_regular(path, MOST_BYTES)
    except FileNotFoundError as error:
        raise EngineLoadError(
            f"The engine {engine} needs its manifest {path.name} next to it, with the origin "
            "of the file and where it may run. Copy both files together, or build the engine again."
        ) from error
    except OSError as error:
        raise EngineLoadError(
            f"The manifest {path} can't be read: {error.strerror or error}. {_AGAIN}"
        ) from error


def _parse(path: Path, data: bytes) -> dict[str, Any]:
    from pydantic_core import from_json  # limits the nesting depth, unlike json

    try:
        values = from_json(data)
    except ValueError as error:
        raise EngineLoadError(f"The manifest {path} can't be read: {error}. {_AGAIN}") from error
    received = values.get("format") if isinstance(values, dict) else type(values).__name__
    if received != FORMAT or isinstance(received, bool):
        raise EngineLoadError(
            f"The manifest {path} has format {_shown(received)}, expected {FORMAT}. Build the "
            "engine again with this version."
        )
    return dict(values)


def _typed(path: Path, content: bytes) -> EngineManifest:
    from pydantic import ValidationError

    try:
        return _schema().validate_json(content, strict=True)
    except ValidationError as error:
        raise EngineLoadError(
            f"The manifest {path} is wrong: {_first(error.errors())} {_AGAIN}"
        ) from error


@cache
def _schema() -> TypeAdapter[EngineManifest]:
    from pydantic import TypeAdapter

    return TypeAdapter(EngineManifest)


@cache
def _spec_schema() -> type[BaseModel]:
    """Return the schema of a build spec's JSON: that of the class, with some fields as text."""
    from pydantic import ConfigDict, create_model

    written: dict[str, Any] = {"shapes": Mapping[str, str], "timing_cache": str | None}
    types: dict[str, Any] = map_values(
        lambda kind: (kind, ...), get_type_hints(BuildSpec) | written
    )
    return create_model("BuildSpecJson", __config__=ConfigDict(extra="forbid"), **types)


def _first(errors: Sequence[Mapping[str, Any]]) -> str:
    where = ".".join(map(str, errors[0]["loc"]))
    return f"{where}: {errors[0]['msg'].lower()}. Received: {_shown(errors[0]['input'])}."


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}…"


# ---------------------------------------------------------------------- what the types can't say
def _problems(manifest: EngineManifest) -> Iterator[str]:
    """Yield contradictions and impossible values."""
    if manifest.backend not in BACKENDS:
        yield f"it is for the backend {manifest.backend!r}, expected one of {', '.join(BACKENDS)}."
        return
    if missing := {"path", "sha256"} - set(manifest.source):
        yield f"source has no {min(missing)}."
    for key, kind in get_backend(manifest.backend).device_keys.items():
        if not isinstance(manifest.device.get(key), kind):
            received = _shown(manifest.device.get(key))
            yield f"device.{key} is a {kind.__name__}. Received: {received}."
    for side, infos in (("inputs", manifest.inputs), ("outputs", manifest.outputs)):
        yield from _tensor_problems(side, infos)
    yield from _spec_problems(manifest)


def _tensor_problems(side: str, infos: Sequence[TensorInfo]) -> Iterator[str]:
    if not infos:
        yield f"{side} is empty, and an engine has at least one."
    for info in infos:
        if min(filter(None, info.shape), default=0) < 0:
            yield f"{side} has a negative dimension. Received: {info}."
        if not _is_number(info.dtype):
            yield f"{side} has a dtype that is no NumPy number. Received: {info}."


def _is_number(dtype: str) -> bool:
    try:
        return np.dtype(dtype).kind in "fiub" and np.dtype(dtype).name == dtype
    except TypeError:
        return False


def _spec_problems(manifest: EngineManifest) -> Iterator[str]:
    """Yield wrong types and values of the build spec."""
    from pydantic import ValidationError

    try:
        _spec_schema().model_validate_json(canonical_json(manifest.spec), strict=True)
        spec = BuildSpec.from_dict(manifest.spec)
    except ValidationError as error:
        yield f"spec.{_first(error.errors())}"
        return
    except ConfigError as error:
        yield f"spec is no build spec: {error}"
        return
    names = sorted(names_of(manifest.inputs))
    if set(spec.shapes) != set(names):
        received = sorted(spec.shapes)
        yield f"spec.shapes has a profile for each of the inputs {names}. Received: {received}."
