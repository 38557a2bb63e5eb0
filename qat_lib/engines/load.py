"""Load an engine after a check of file, manifest and machine."""

from __future__ import annotations

import logging
import os
import tempfile
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from qat_lib.engines import files
from qat_lib.engines.backend import get_backend
from qat_lib.engines.build import build_engine
from qat_lib.engines.engine import Engine
from qat_lib.engines.manifest import EngineManifest, manifest_path
from qat_lib.engines.manifest_file import read_manifest
from qat_lib.engines.request_pool import RequestLimits
from qat_lib.engines.spec import BuildSpec
from qat_lib.errors import EngineLoadError
from qat_lib.files.regular_files import open_regular
from qat_lib.support.digests import sha256_of_file

logger = logging.getLogger(__name__)


def load_engine(
    path: Path | str, *, rebuild: bool = True, limits: RequestLimits | None = None
) -> Engine:
    """Load an engine file, checked against its manifest and this machine.

    Args:
        path: the engine file, with its manifest in the same folder.
        rebuild: whether to rebuild an engine of another library version or device in memory, if
            the ONNX file in the manifest still exists unchanged. The engine file is not changed.
            TensorRT engines are never rebuilt, since that takes minutes.
        limits: limits of concurrent and waiting threads.

    Raises:
        EngineLoadError: file or manifest is missing, damaged, or made for another version or
            device.
        BackendUnavailableError: the backend's library, driver or device is missing.
    """
    engine = Path(path)
    data, manifest = _read(engine)
    backend = get_backend(manifest.backend)
    refusal = backend.refusal(manifest)
    if refusal is None:
        return backend.open(data, manifest, limits)
    if not rebuild or not backend.rebuilds:
        raise EngineLoadError(
            f"{engine} can't run here: {refusal} Build the engine again on this machine."
        )
    # A path relative to the engine, as in a package, or an absolute one.
    onnx = engine.parent / manifest.source["path"]
    if not onnx.is_file() or sha256_of_file(onnx) != manifest.source["sha256"]:
        raise EngineLoadError(
            f"{engine} can't run here: {refusal} It can't be rebuilt either, since the ONNX file "
            f"it was made of, {onnx}, is gone or has changed. Build the engine again from the ONNX "
            "file."
        )
    logger.warning("%s can't run here: %s It is rebuilt from %s.", engine, refusal, onnx)
    with tempfile.TemporaryDirectory(prefix="qatline-rebuild-") as directory:
        artifact = build_engine(
            onnx, BuildSpec.from_dict(manifest.spec), output=Path(directory) / engine.name
        )
        return backend.open(artifact.path.read_bytes(), artifact.manifest, limits)


def _read(engine: Path) -> tuple[bytes, EngineManifest]:
    data, manifest, problem = _read_pair(engine)
    if problem:
        # A build may have replaced only one of the two files so far: wait for its end. No build
        # writes to a folder in which the lock can't be created.
        with suppress(OSError), files.locked(manifest_path(engine)):
            data, manifest, problem = _read_pair(engine)
    if problem:
        raise EngineLoadError(problem)
    return data, manifest


def _read_pair(engine: Path) -> tuple[bytes, EngineManifest, str]:
    """Return an engine, its manifest and their contradiction, empty for none."""
    try:
        with open_regular(engine) as stream:
            size = os.fstat(stream.fileno()).st_size
            manifest = read_manifest(engine)
            # Before reading: a wrong file may be arbitrarily large.
            if size != manifest.bytes:
                problem = (
                    f"{engine} has {size} bytes, its manifest says {manifest.bytes}: the file is "
                    "truncated or not the one that the manifest describes. Copy both again, or "
                    "build the engine again."
                )
                return b"", manifest, problem
            data = stream.read(size)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise EngineLoadError(f"There is no engine file at {engine}. Build it first.") from error
    except OSError as error:
        raise EngineLoadError(
            f"The engine file {engine} can't be read: {error.strerror or error}."
        ) from error
    digest = sha256(data).hexdigest()
    if digest == manifest.digest:
        return data, manifest, ""
    problem = (
        f"{engine} has the digest {digest[:12]}…, its manifest says {manifest.digest[:12]}…: "
        "the file is damaged. Copy it again, or build the engine again."
    )
    return data, manifest, problem
