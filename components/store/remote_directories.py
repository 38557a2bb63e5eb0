"""Finished step directories in a storage: the manifest is stored last and removed first.

Object stores have no rename. The order gives a folder there the same guarantee as on a disk: it
counts as finished only if its ``manifest.json`` exists and matches the files.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from qat_lib.errors import ConfigError, StorageError
from qatline.components.storage.storage import Storage, open_storage
from qatline.components.store.manifest import MANIFEST_NAME, Manifest, verify_directory

ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
"""Environment variables with the address of S3; the first that is set applies."""


def object_location(uri: str, environment: Mapping[str, str] | None = None) -> str:
    """Return the location of a Kubeflow artifact: a path or ``s3://bucket/key``.

    Args:
        uri: Kubeflow's URI of the artifact: ``s3://``, ``minio://`` or a path. A query after ``?``
            with the address of the store is ignored in favor of the environment.
        environment: environment variables. Default: ``os.environ``.

    Raises:
        ConfigError: the artifact is in an unsupported store, or in MinIO at an unknown address.
    """
    values = os.environ if environment is None else environment
    location = uri.partition("?")[0]
    scheme, separator, rest = location.partition("://")
    if not separator or scheme == "s3":
        return location
    if scheme != "minio":
        raise ConfigError(
            "Expected a pipeline root in S3 (s3://bucket/folder or minio://bucket/folder), where "
            f"several workers read and write artifacts; received {location}. Set "
            "cluster.pipeline_root, or training.workers=1."
        )
    if not any(map(values.get, ENDPOINT_VARIABLES)):
        raise ConfigError(
            f"Expected the address of MinIO for {location} in the environment, received none. Set "
            "cluster.env.AWS_ENDPOINT_URL_S3, such as http://minio-service.kubeflow:9000."
        )
    return f"s3://{rest}"


def fetch_artifact(location: str, target: Path, storage: Storage | None = None) -> Manifest:
    """Copy a finished folder to ``target`` and verify every file.

    Args:
        location: a path or ``s3://bucket/key``.
        target: a missing or empty folder.
        storage: the storage of the location by default.

    Raises:
        StorageError: the folder is not finished, is incomplete, or cannot be fetched.
    """
    storage = storage or open_storage(location)
    root = location.rstrip("/") + "/"
    if storage.describe(root + MANIFEST_NAME) is None:
        raise StorageError(
            f"{location} is not finished: expected {MANIFEST_NAME} in it, found none. "
            "Run the step that writes it again."
        )
    for file in storage.list(root):
        if not file.location.endswith("/"):
            storage.get(file.location, target / _name_in(root, file.location))
    return verify_directory(target)


def store_artifact(source: Path, location: str, storage: Storage | None = None) -> None:
    """Store a finished folder; it counts as finished only after the last file.

    Args:
        source: a finished folder.
        location: a path or ``s3://bucket/key``. Remains of earlier attempts are removed.
        storage: the storage of the location by default.

    Raises:
        StorageError: the folder is not finished, is incomplete, or cannot be stored.
    """
    manifest = verify_directory(source, contents=False)
    storage = storage or open_storage(location)
    root = location.rstrip("/") + "/"
    # First: without a manifest, readers never combine old and new files.
    storage.remove(root + MANIFEST_NAME)
    for file in storage.list(root):
        if _name_in(root, file.location) not in manifest.files:
            storage.remove(file.location)
    for name in (*manifest.files, MANIFEST_NAME):
        storage.put(source / name, root + name)


def _name_in(root: str, location: str) -> str:
    name = posixpath.relpath(location, root) if "://" not in root else location[len(root) :]
    if ".." in PurePosixPath(name).parts:
        raise StorageError(f"expected names below {root}, received {location}")
    return name
