"""S3 responses of a fake client.

``test_storage`` has a server's.
"""

from pathlib import Path
from typing import Any

import pytest

from qat_lib.errors import StorageError
from qatline.components.storage import s3 as s3_storage
from qatline.components.storage.s3 import S3Storage, s3_client, split_location
from qatline.components.storage.stored_file import StoredFile

boto3 = pytest.importorskip("boto3")


def answer(code: str) -> Exception:
    from botocore.exceptions import ClientError

    return ClientError({"Error": {"Code": code, "Message": "no"}}, "HeadObject")


class Client:
    """A bucket of one object, ``content``; ``error`` is raised by every call."""

    def __init__(self, content: bytes = b"abc") -> None:
        self.content = content
        self.sent = content
        self.tags = iter("ttttt")
        self.error: Exception | None = None

    def head_object(self, **names: str) -> dict[str, Any]:
        assert names == {"Bucket": "b", "Key": "k/l"}
        if self.error is not None:
            raise self.error
        return {"ContentLength": len(self.content), "ETag": f'"{next(self.tags)}"'}

    def download_file(self, bucket: str, key: str, path: str, **options: Any) -> None:
        assert (bucket, key) == ("b", "k/l")
        Path(path).write_bytes(self.sent)

    def upload_file(self, path: str, bucket: str, key: str, **options: Any) -> None:
        assert (bucket, key) == ("b", "k/l")


LOCATION = "s3://b/k/l"


def test_describe_is_size_and_tag() -> None:
    assert S3Storage(Client()).describe(LOCATION) == StoredFile(location=LOCATION, size=3, tag="t")


@pytest.mark.parametrize("code", ["404", "NoSuchKey", "NoSuchBucket", "NotFound"])
def test_describe_is_none_of_what_does_not_exist(code: str) -> None:
    client = Client()
    client.error = answer(code)
    assert S3Storage(client).describe(LOCATION) is None
    with pytest.raises(StorageError, match="l does not exist, or these credentials may not see it"):
        S3Storage(client).put(Path(__file__), LOCATION)


@pytest.mark.parametrize(("code", "hint"), [("403", True), ("AccessDenied", True), ("500", False)])
def test_describe_tells_what_s3_answers(code: str, hint: bool) -> None:
    client = Client()
    client.error = answer(code)
    with pytest.raises(StorageError, match=f"S3 answers {code}") as caught:
        S3Storage(client).describe(LOCATION)
    assert ("Check the credentials" in str(caught.value)) is hint


def test_describe_tells_what_the_libraries_raise() -> None:
    from boto3.exceptions import Boto3Error
    from botocore.exceptions import BotoCoreError, NoCredentialsError

    client = Client()
    for error, message in (
        (BotoCoreError(), "S3 can't be reached or used"),
        (Boto3Error("x"), "S3 can't be reached or used: x"),
        (NoCredentialsError(), "no credentials for S3"),
        (OSError(28, "No space left on device"), "the disk is full"),
        (StorageError("own"), "^own$"),
    ):
        client.error = error
        with pytest.raises(StorageError, match=message):
            S3Storage(client).describe(LOCATION)


def test_get_writes_a_whole_file_into_new_folders(tmp_path: Path) -> None:
    target = tmp_path / "new" / "folder" / "a"
    storage = S3Storage(Client())
    assert storage.get(LOCATION, target) == StoredFile(location=LOCATION, size=3, tag="t")
    storage.get(LOCATION, target)
    assert target.read_bytes() == b"abc"


@pytest.mark.parametrize("sent", [b"ab", b"abcd"])
def test_get_refuses_another_size(tmp_path: Path, sent: bytes) -> None:
    client = Client()
    client.sent = sent
    with pytest.raises(StorageError, match=f"received {len(sent)} bytes, expected 3"):
        S3Storage(client).get(LOCATION, tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


def test_get_refuses_what_changed_meanwhile(tmp_path: Path) -> None:
    client = Client()
    client.tags = iter("12")
    with pytest.raises(StorageError, match="changed while it was fetched"):
        S3Storage(client).get(LOCATION, tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"ab", b"abcd"])
def test_put_checks_the_size_of_what_is_stored(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    assert S3Storage(Client()).put(tmp_path / "a", LOCATION).size == 3
    with pytest.raises(StorageError, match=f"stored {len(content)} bytes of 3"):
        S3Storage(Client(content)).put(tmp_path / "a", LOCATION)


def test_large_files_go_in_parts_of_16_mib() -> None:
    transfer = s3_storage._transfer()
    assert transfer.multipart_threshold == transfer.multipart_chunksize == 16 << 20


def test_s3_client_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    class Session:
        def client(self, name: str, *, config: Any) -> None:
            asked.append((name, config.retries, config.connect_timeout, config.read_timeout))

    monkeypatch.setattr(boto3.session, "Session", Session)
    s3_client()
    ((name, retries, connect, read),) = asked
    assert (name, connect, read, retries["mode"]) == ("s3", 5, 60, "standard")
    assert 4 in retries.values()


def test_s3_client_tells_a_wrong_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    from botocore.exceptions import BotoCoreError

    errors = [ValueError("Invalid endpoint"), BotoCoreError()]

    def session() -> None:
        raise errors.pop()

    monkeypatch.setattr(boto3.session, "Session", session)
    for _ in range(2):
        with pytest.raises(StorageError, match="the S3 client can't be set up"):
            s3_client()


def test_s3_client_needs_boto3(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_storage.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(StorageError, match=r"pip install 'qatline\[pipeline\]'"):
        s3_client()


def test_split_location_allows_bare_bucket() -> None:
    assert split_location("s3://b/k/l") == ("b", "k/l")
    assert (
        split_location("s3://b", whole=False) == split_location("s3://b/", whole=False) == ("b", "")
    )
    for location in ("s3://b", "s3://b/", "s3:///k", "b/k", "gs://b/k"):
        with pytest.raises(StorageError, match="expected s3://bucket/key"):
            split_location(location)
    for location in ("s3://", "s3:///k", "b/k"):
        with pytest.raises(StorageError, match="expected s3://bucket/key"):
            split_location(location, whole=False)
