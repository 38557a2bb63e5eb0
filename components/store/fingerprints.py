"""Dependencies of a step's result besides its settings.

They are the code, the libraries, files named in the settings, and the machine.

No function imports the code it describes, so that reused steps remain fast.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.machinery
import platform
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, get_args

import qat_lib
from qat_lib.errors import ConfigError, DataError
from qat_lib.options import Backend
from qat_lib.support.digests import sha256_of_file
from qatline.components.storage.stored_file import split_pattern
from qatline.components.support.frameworks import FRAMEWORKS

OWN_FOLDERS = (Path(qat_lib.__file__).parent, Path(__file__).parents[1])
"""Folders of the packages that compute results."""
LIBRARIES = (
    "tensorflow",
    "keras",
    "numpy",
    "onnx",
    "tf2onnx",
    *get_args(Backend),
    *FRAMEWORKS["torch"].packages,
)
# Settings that may contain a path; the content of that file or folder is a dependency.
PATH_SETTINGS = (
    ("data", "path"),
    ("model", "name"),
    ("model", "weights"),
    ("quantization", "spec"),
)
# Values of data.kind whose data.path is a folder.
_FOLDERS = ("folder", "masks", "coco", "tfrecord", "huggingface")
_REFERENCE = re.compile(r"([A-Za-z_]\w*(?:\.\w+)*):[A-Za-z_]\w*")


def code_digest(settings: Mapping[str, Any]) -> str:
    """Return the SHA-256 of qatline's sources and the user's modules.

    The user's modules are those named in ``settings``, with the user modules they import.

    Raises:
        ConfigError: a module cannot be found.
    """
    digest = hashlib.sha256()
    for folder in OWN_FOLDERS:
        digest.update(package_digest(folder))
    _add_sources(digest, _user_sources(_module_references(settings)), None)
    return digest.hexdigest()


@cache
def package_digest(folder: Path) -> bytes:
    """Return the SHA-256 of a package: sources and data, such as the report's templates."""
    # Read once by a process: the launcher asks for it at every step.
    digest = hashlib.sha256()
    files = (path for path in folder.rglob("*") if path.is_file())
    sources = sorted(path for path in files if "__pycache__" not in path.parts)
    _add_sources(digest, sources, folder.parent)
    return digest.digest()


def user_code_digest(reference: str) -> str:
    """Return the SHA-256 of the user modules behind ``module:attribute``.

    The result is empty if the name is not such a reference.

    Raises:
        ConfigError: the module cannot be found.
    """
    modules = list(_module_references(reference))
    if not modules:
        return ""
    digest = hashlib.sha256()
    _add_sources(digest, _user_sources(modules), None)
    return digest.hexdigest()


def library_versions() -> dict[str, str | None]:
    """Return the versions of the libraries that affect results; None for missing ones."""
    versions: dict[str, str | None] = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    return versions


def settings_files(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return a content digest per file, folder or object in the settings.

    Files are hashed. Folders are represented by names, sizes and modification times. ``s3://``
    objects are represented by ETag and size, folders in S3 by those of every object. Missing paths
    are omitted: the step reports them.
    """
    digests = {}
    for section, name in PATH_SETTINGS:
        value = (settings.get(section) or {}).get(name)
        if not isinstance(value, str):
            continue
        kind = settings[section].get("kind")
        if kind == "tfrecord" and not Path(value).is_dir():
            value, _ = split_pattern(value)
        if value.startswith("s3://"):
            is_folder = section == "data" and kind in _FOLDERS
            if stored := _remote_digest(value, is_folder=is_folder):
                digests[f"{section}.{name}"] = stored
        elif (path := Path(value).expanduser()).is_file():
            digests[f"{section}.{name}"] = file_digest(path)
        elif path.is_dir() and section == "data":
            digests[f"{section}.{name}"] = listing_digest(path)
    return digests


def _remote_digest(location: str, *, is_folder: bool) -> str | None:
    """Return a digest of an S3 object or of a folder's objects; None if nothing exists."""
    if is_folder:
        from qatline.components.storage.remote_folder import folder_digest

        if (found := folder_digest(location)) is not None:
            return found
    from qatline.components.storage.storage import open_storage

    stored = open_storage(location).describe(location)
    return None if stored is None else f"{stored.tag} {stored.size}"


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file's content.

    Raises:
        DataError: the file cannot be read.
    """
    try:
        return sha256_of_file(path)
    except OSError as error:
        raise DataError(f"{path} can't be read: {error.strerror}") from error


def listing_digest(folder: Path) -> str:
    """Return a SHA-256 of path, size and modification time of every file below ``folder``."""
    digest = hashlib.sha256()
    try:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            status = path.stat()
            digest.update(
                f"{path.relative_to(folder).as_posix()}\0{status.st_size}\0{status.st_mtime_ns}\n".encode()
            )
    except OSError as error:
        raise DataError(f"{folder} can't be listed: {error}") from error
    return digest.hexdigest()


def machine_identity() -> str:
    """Return a digest of the hardware that engines depend on: CPU, GPUs and driver."""
    texts = [platform.machine()]
    for path, wanted in (
        (Path("/proc/cpuinfo"), ("model name", "flags", "Features", "CPU part")),
        (Path("/proc/driver/nvidia/version"), ("NVRM",)),
        *(
            (info, ("Model", "GPU UUID"))
            for info in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
        ),
    ):
        if path.is_file():
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
            # A set: /proc/cpuinfo repeats the lines for each core.
            texts += sorted({line for line in lines if line.startswith(wanted)})
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


def _add_sources(digest: Any, paths: Iterable[Path], base: Path | None) -> None:
    for path in paths:
        digest.update(f"{path.relative_to(base) if base else path.name}\0".encode())
        digest.update(path.read_bytes())


def _module_references(value: Any) -> Iterator[str]:
    """Yield the module of each ``module:attribute`` string, except those of versioned libraries."""
    if isinstance(value, str):
        match = _REFERENCE.fullmatch(value)
        if match and match[1].partition(".")[0] not in ("qat_lib", "qatline", *LIBRARIES, "tf"):
            yield match[1]
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _module_references(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _module_references(item)


def user_modules(modules: Iterable[str]) -> dict[str, list[Path]]:
    """Return the user modules required by ``modules``, with their source files.

    Installed packages are not included.

    Args:
        modules: names such as ``my_networks`` or ``my_networks.small``.

    Raises:
        ConfigError: one of ``modules`` cannot be found.
    """
    waiting, seen, found = {name.partition(".")[0] for name in modules}, set[str](), {}
    named = frozenset(waiting)
    while waiting:
        name = waiting.pop()
        seen.add(name)
        if sources := _sources_of(name, required=name in named):
            found[name] = sources
        for path in sources:
            waiting |= _imported_names(path) - seen
    return found


def _user_sources(modules: Iterable[str]) -> list[Path]:
    """Return the source files of user modules and their imports."""
    files: set[Path] = set()
    for sources in user_modules(modules).values():
        files.update(sources)
    return sorted(files)


def _sources_of(name: str, *, required: bool) -> list[Path]:
    # PathFinder locates a module without executing it; the standard library belongs to the Python
    # version.
    spec = (
        None if name in sys.stdlib_module_names else importlib.machinery.PathFinder.find_spec(name)
    )
    if spec is None:
        if required:
            raise ConfigError(
                f"module {name!r}, named in the settings, can't be found: run the command from "
                "the folder that holds it, or put that folder on PYTHONPATH"
            )
        return []
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    origin = Path(spec.origin) if spec.origin and spec.origin.endswith(".py") else None
    installed = Path(sysconfig.get_path("purelib"))
    if not required and any(
        installed in place.parents for place in (*folders, *([origin] if origin else []))
    ):
        return []
    if folders:
        return sorted(path for folder in folders for path in folder.rglob("*.py"))
    return [origin] if origin else []


def _imported_names(path: Path) -> set[str]:
    """Return the top-level names of a source file's absolute imports.

    Relative imports never leave the package.
    """
    try:
        tree = ast.parse(path.read_bytes())
    except SyntaxError:
        return set()  # the step reports this better when it imports the file
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names - {"qat_lib", "qatline"}
