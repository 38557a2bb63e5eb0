"""Storage in S3 and compatible servers.

boto3 reads the endpoint from ``AWS_ENDPOINT_URL_S3``, and credentials and region as usual. MLflow's
artifact store does the same unless ``MLFLOW_S3_ENDPOINT_URL`` is set, so that one setting suffices.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from qat_lib.errors import StorageError
from qat_lib.files.whole_files import written_beside
from qat_lib.support.extras import install_hint
from qatline.components.storage.stored_file import StoredFile
from qatline.components.support.credentials import S3_ENDPOINT_VARIABLES, check_variables
from qatline.components.support.disk_errors import as_storage_error

_ATTEMPTS = 4
_CONNECT_SECONDS, _READ_SECONDS = 5, 60
_MISSING = frozenset({"404", "NoSuchKey", "NoSuchBucket", "NotFound"})
_CHANGED = frozenset({"412", "PreconditionFailed"})
_PART_BYTES = 16 << 20


def s3_client() -> Any:
    """Return a boto3 client with standard retries and timeouts.

    Raises:
        ConfigError: the server's address in an environment variable contains credentials.
        StorageError: boto3 is not installed, or its configuration is wrong.
    """
    check_variables(*S3_ENDPOINT_VARIABLES)
    if importlib.util.find_spec("boto3") is None:
        raise StorageError(f"s3:// locations need the package boto3. {install_hint(['boto3'])}")
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError

    config = Config(
        retries={"max_attempts": _ATTEMPTS, "mode": "standard"},
        connect_timeout=_CONNECT_SECONDS,
        read_timeout=_READ_SECONDS,
    )
    try:
        # A new session: boto3's default session keeps the first credentials of the process.
        return boto3.session.Session().client("s3", config=config)
    except (BotoCoreError, ValueError) as error:
        raise StorageError(f"the S3 client can't be set up: {error}") from error


class S3Storage:
    """S3 objects as files, tagged by ETag; the client is injected."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def describe(self, location: str) -> StoredFile | None:
        """Return an object's size and ETag, or None if it is missing."""
        from botocore.exceptions import ClientError

        bucket, key = split_location(location)
        with _translated(location):
            try:
                head = self._client.head_object(Bucket=bucket, Key=key)
            except ClientError as error:
                if _code(error) in _MISSING:
                    return None
                raise
        return StoredFile(
            location=location, size=int(head["ContentLength"]), tag=head["ETag"].strip('"')
        )

    def get(self, location: str, target: Path) -> StoredFile:
        """Download an object and verify its size and content tag.

        Large objects are downloaded in parallel parts.
        """
        bucket, key = split_location(location)
        before = self._existing(location)
        with _translated(location):
            target.parent.mkdir(parents=True, exist_ok=True)
            with written_beside(target) as unfinished:
                self._client.download_file(bucket, key, str(unfinished), Config=_transfer())
                if (size := unfinished.stat().st_size) != before.size:
                    raise StorageError(f"{location}: received {size} bytes, expected {before.size}")
                # Parallel parts are separate requests: they may come from different versions.
                if self._existing(location) != before:
                    raise StorageError(f"{location} changed while it was fetched: run again")
        return before

    def get_version(self, stored: StoredFile, target: Path) -> StoredFile:
        """Download a listed object in one request; repeat incomplete downloads."""
        bucket, key = split_location(stored.location)
        with _translated(stored.location):
            target.parent.mkdir(parents=True, exist_ok=True)
            with written_beside(target) as unfinished:
                for _ in range(_ATTEMPTS):
                    received = self._download(bucket, key, stored, unfinished)
                    if received == stored.size:
                        return stored
                raise StorageError(
                    f"{stored.location}: received {received} bytes, expected {stored.size}: run "
                    "again"
                )

    def _download(self, bucket: str, key: str, stored: StoredFile, target: Path) -> int:
        """Download an object with an unchanged tag; return the number of bytes received."""
        from botocore.exceptions import (
            ClientError,
            IncompleteReadError,
            ReadTimeoutError,
            ResponseStreamingError,
        )

        try:
            answer = self._client.get_object(Bucket=bucket, Key=key, IfMatch=f'"{stored.tag}"')
        except ClientError as error:
            if _code(error) in _CHANGED | _MISSING:
                raise StorageError(
                    f"{stored.location} changed while it was fetched: run again"
                ) from error
            raise
        with target.open("wb") as stream:
            try:
                for block in answer["Body"].iter_chunks(1 << 20):
                    stream.write(block)
            except (IncompleteReadError, ReadTimeoutError, ResponseStreamingError):
                pass  # detected by the size
            return stream.tell()

    def missing(self, location: str) -> str:
        """Return the reason for a missing object, for a message."""
        from botocore.exceptions import ClientError

        bucket, _ = split_location(location, whole=False)
        with _translated(location):
            try:
                self._client.head_bucket(Bucket=bucket)
            except ClientError as error:
                if _code(error) in _MISSING:
                    return f"{location}: the bucket {bucket!r} does not exist"
        return f"{location} does not exist, or these credentials may not see it"

    def put(self, source: Path, location: str) -> StoredFile:
        """Upload a file, in parallel parts if it is large."""
        bucket, key = split_location(location)
        with _translated(location):
            self._client.upload_file(str(source), bucket, key, Config=_transfer())
        stored = self._existing(location)
        if stored.size != source.stat().st_size:
            raise StorageError(f"{location}: stored {stored.size} bytes of {source.stat().st_size}")
        return stored

    def list(self, location: str, *, most: int | None = None) -> list[StoredFile]:
        """Return every object with the location's prefix, page by page, or the first ones."""
        bucket, prefix = split_location(location, whole=False)
        with _translated(location):
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=bucket, Prefix=prefix
            )
            found = (
                StoredFile(
                    location=f"s3://{bucket}/{item['Key']}",
                    size=item["Size"],
                    tag=item["ETag"].strip('"'),
                )
                for page in pages
                for item in page.get("Contents", ())
            )
            return [*islice(found, most)]

    def remove(self, location: str) -> None:
        """Delete an object; S3 ignores missing ones."""
        bucket, key = split_location(location)
        with _translated(location):
            self._client.delete_object(Bucket=bucket, Key=key)

    def _existing(self, location: str) -> StoredFile:
        stored = self.describe(location)
        if stored is None:
            raise StorageError(f"{location} does not exist, or these credentials may not see it")
        return stored


def split_location(location: str, *, whole: bool = True) -> tuple[str, str]:
    """Split ``s3://bucket/key`` into bucket and key.

    Raises:
        StorageError: it has another form, or no key although ``whole``.
    """
    bucket, _, key = location.removeprefix("s3://").partition("/")
    if not location.startswith("s3://") or not bucket or (whole and not key):
        raise StorageError(f"expected s3://bucket/key, received {location!r}")
    return bucket, key


def _transfer() -> Any:
    from boto3.s3.transfer import TransferConfig

    return TransferConfig(multipart_threshold=_PART_BYTES, multipart_chunksize=_PART_BYTES)


def _code(error: Any) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


@contextmanager
def _translated(location: str) -> Iterator[None]:
    from boto3.exceptions import Boto3Error
    from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

    try:
        yield
    except NoCredentialsError as error:
        what = "no credentials for S3. Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY."
        raise StorageError(f"{location}: {what}") from error
    except ClientError as error:
        hint = (
            " Check the credentials and the bucket's policy."
            if _code(error) in ("403", "AccessDenied")
            else ""
        )
        raise StorageError(f"{location}: S3 answers {_code(error)}: {error}.{hint}") from error
    except (BotoCoreError, Boto3Error) as error:
        raise StorageError(f"{location}: S3 can't be reached or used: {error}") from error
    except StorageError:
        raise
    except OSError as error:
        raise as_storage_error(error, Path(location)) from error
