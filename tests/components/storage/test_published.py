"""Published folders, on disk and in S3."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from qat_lib.errors import StorageError
from qatline.components.storage.published import LISTING, fetch_published, publish_folder
from qatline.components.storage.storage import LocalStorage

# botocore 1.44 on Python 3.12 and later.
pytestmark = pytest.mark.filterwarnings("ignore:datetime.datetime.utcnow")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "made" / "deep").mkdir(parents=True)
    (tmp_path / "made" / "a.bin").write_bytes(bytes(range(256)))
    (tmp_path / "made" / "deep" / "b.txt").write_text("b")
    (tmp_path / "made" / "link").symlink_to(tmp_path / "made" / "a.bin")
    return tmp_path / "made"


@pytest.fixture(params=["disk", "s3"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "disk":
        return str(tmp_path / "store")
    request.getfixturevalue("s3").create_bucket(Bucket="published")
    return "s3://published/deep/folder/"


def test_readers_get_what_was_published(folder: Path, location: str, tmp_path: Path) -> None:
    assert publish_folder(folder, location) == 3
    fetch_published(location, tmp_path / "copy")
    found = {
        path.relative_to(tmp_path / "copy").as_posix(): path.read_bytes()
        for path in (tmp_path / "copy").rglob("*")
        if path.is_file()
    }
    assert found == {"a.bin": bytes(range(256)), "deep/b.txt": b"b", "link": bytes(range(256))}


def test_listing_is_stored_last(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A publication that breaks off leaves nothing that readers take."""
    publish_folder(folder, str(tmp_path / "store"))
    real, stored = LocalStorage.put, list[str]()

    def put(self: LocalStorage, source: Path, place: str) -> Any:
        if len(stored) == 2:
            raise StorageError("the disk is full")
        stored.append(place)
        return real(self, source, place)

    monkeypatch.setattr(LocalStorage, "put", put)
    with pytest.raises(StorageError, match="the disk is full"):
        publish_folder(folder, str(tmp_path / "store"))
    with pytest.raises(StorageError, match="Expected a published folder"):
        fetch_published(str(tmp_path / "store"), tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_flipped_byte_is_detected(folder: Path, tmp_path: Path) -> None:
    publish_folder(folder, str(tmp_path / "store"))
    file = tmp_path / "store" / "a.bin"
    data = bytearray(file.read_bytes())
    data[7] ^= 1
    file.write_bytes(data)
    with pytest.raises(StorageError, match=r"a\.bin differs from its SHA-256"):
        fetch_published(str(tmp_path / "store"), tmp_path / "copy")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["made", "store"]


def test_unlisted_files_are_left(folder: Path, tmp_path: Path) -> None:
    publish_folder(folder, str(tmp_path / "store"))
    (tmp_path / "store" / "old.txt").write_text("of an earlier publication")
    fetch_published(str(tmp_path / "store"), tmp_path / "copy")
    assert not (tmp_path / "copy" / "old.txt").exists()


@pytest.mark.parametrize(
    "listing",
    [
        "{",
        "[]",
        '{"format": 2, "files": {}}',
        '{"format": 1, "files": {"../x": {"sha256": "0"}}}',
        '{"format": 1, "files": {"a": {}}}',
    ],
)
def test_damaged_listings_are_refused(folder: Path, tmp_path: Path, listing: str) -> None:
    publish_folder(folder, str(tmp_path / "store"))
    (tmp_path / "store" / LISTING).write_text(listing)
    with pytest.raises(StorageError, match=LISTING.replace(".", r"\.")):
        fetch_published(str(tmp_path / "store"), tmp_path / "copy")


def test_listings_of_folders_inside_are_files(folder: Path, tmp_path: Path) -> None:
    (folder / "deep" / LISTING).write_text("of another publication")
    assert publish_folder(folder, str(tmp_path / "store")) == 4


def test_empty_folders_are_not_published(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="Expected a folder with files to publish"):
        publish_folder(tmp_path / "missing", str(tmp_path / "store"))


def test_listing_has_sizes(folder: Path, tmp_path: Path) -> None:
    publish_folder(folder, str(tmp_path / "store"))
    content = json.loads((tmp_path / "store" / LISTING).read_text())
    assert {name: each["bytes"] for name, each in content["files"].items()} == {
        "a.bin": 256,
        "deep/b.txt": 1,
        "link": 256,
    }
