"""Finished folders in a storage: never half of one."""

from collections.abc import Callable
from pathlib import Path

import pytest

from qat_lib.errors import ConfigError, StorageError
from qatline.components.storage.storage import LocalStorage
from qatline.components.storage.stored_file import StoredFile
from qatline.components.store import remote_directories as folders
from qatline.components.store.directories import MANIFEST_NAME, describe, publish, verify_directory
from qatline.components.store.remote_directories import (
    fetch_artifact,
    object_location,
    store_artifact,
)

S3 = {"AWS_ENDPOINT_URL_S3": "http://minio:9000"}


class Recording(LocalStorage):
    """A folder that says in which order it was written, and may break."""

    def __init__(self, puts: int = 100) -> None:
        self.done: list[str] = []
        self.puts = puts

    def put(self, source: Path, location: str) -> StoredFile:
        if not self.puts:
            raise StorageError("the store went away")
        self.puts -= 1
        self.done.append(f"put {Path(location).name}")
        return super().put(source, location)

    def remove(self, location: str) -> None:
        self.done.append(f"remove {Path(location).name}")
        super().remove(location)


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Path]:
    def make(name: str, **files: str) -> Path:
        work, final = tmp_path / f"work-{name}", tmp_path / name
        for file, text in files.items():
            place = work / file.replace("__", "/")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)
        publish(work, final, describe(work, step="train_baseline", metrics={"accuracy": 0.5}))
        return final

    return make


@pytest.mark.parametrize(
    ("uri", "location"),
    [
        ("s3://bucket/a/b", "s3://bucket/a/b"),
        ("minio://bucket/a/b", "s3://bucket/a/b"),
        ("minio://bucket/a/b?endpoint=x:9000&secure=false", "s3://bucket/a/b"),
        ("/shared/a/b", "/shared/a/b"),
    ],
)
def test_object_location_is_where_the_storage_finds_it(uri: str, location: str) -> None:
    assert object_location(uri, S3) == location


def test_object_location_refuses_other_stores() -> None:
    with pytest.raises(ConfigError, match=r"pipeline root in S3.*received gs://bucket/a\. Set"):
        object_location("gs://bucket/a", S3)


def test_object_location_needs_to_know_where_minio_is() -> None:
    assert object_location("minio://b/a", {"AWS_ENDPOINT_URL": "http://minio:9000"}) == "s3://b/a"
    with pytest.raises(ConfigError, match=r"Set cluster\.env\.AWS_ENDPOINT_URL_S3"):
        object_location("minio://bucket/a", {})


def test_a_stored_folder_comes_back(make: Callable[..., Path], tmp_path: Path) -> None:
    source = make("source", a="one", inside__b="two")
    store_artifact(source, str(tmp_path / "store"))
    manifest = fetch_artifact(str(tmp_path / "store"), tmp_path / "back")
    assert manifest.metrics == {"accuracy": 0.5}
    assert (tmp_path / "back" / "inside" / "b").read_text() == "two"
    assert verify_directory(tmp_path / "back").digest == verify_directory(source).digest


def test_the_manifest_is_removed_first_and_stored_last(
    make: Callable[..., Path], tmp_path: Path
) -> None:
    target = tmp_path / "store"
    store_artifact(make("old", gone="x", same="y"), str(target))
    storage = Recording()
    store_artifact(make("new", same="z", more="w"), str(target), storage)
    assert storage.done == [
        f"remove {MANIFEST_NAME}",
        "remove gone",
        "put more",
        "put same",
        f"put {MANIFEST_NAME}",
    ]
    assert set(verify_directory(target).files) == {"same", "more"}


@pytest.mark.parametrize("puts", [0, 1, 2])
def test_a_folder_that_was_cut_short_is_not_finished(
    make: Callable[..., Path], tmp_path: Path, puts: int
) -> None:
    target = str(tmp_path / "store")
    store_artifact(make("old", a="1", b="1"), target)
    with pytest.raises(StorageError, match="went away"):
        store_artifact(make("new", a="2", b="2"), target, Recording(puts))
    with pytest.raises(StorageError, match="is not finished"):
        fetch_artifact(target, tmp_path / "back")
    assert not (tmp_path / "back").exists()


def test_a_damaged_folder_is_refused(make: Callable[..., Path], tmp_path: Path) -> None:
    target = tmp_path / "store"
    store_artifact(make("source", a="1"), str(target))
    (target / "a").write_text("2")
    with pytest.raises(StorageError, match="the content of a changed"):
        fetch_artifact(str(target), tmp_path / "back")


def test_an_unfinished_folder_is_not_stored(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    with pytest.raises(StorageError, match="is not finished"):
        store_artifact(tmp_path, str(tmp_path / "store"))


def test_names_outside_the_folder_are_refused(tmp_path: Path) -> None:
    class Hostile(LocalStorage):
        def describe(self, location: str) -> StoredFile | None:
            return StoredFile(location=location, size=1, tag="t")

        def list(self, location: str) -> list[StoredFile]:
            return [StoredFile(location=f"{location}../x", size=1, tag="t")]

    with pytest.raises(StorageError, match="expected names below s3://b/k/"):
        fetch_artifact("s3://b/k", tmp_path / "back", Hostile())


def test_markers_of_folders_in_s3_are_passed_over(
    make: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make("source", a="1")

    class Bucket(LocalStorage):
        """Objects ``s3://b/k/...`` in a local folder, and an empty object called like a folder."""

        def describe(self, location: str) -> StoredFile | None:
            return super().describe(location.replace("s3://b/k", str(source)))

        def list(self, location: str) -> list[StoredFile]:
            names = ("", "a", MANIFEST_NAME)
            return [StoredFile(location=f"{location}{name}", size=0, tag="") for name in names]

        def get(self, location: str, target: Path) -> StoredFile:
            return super().get(location.replace("s3://b/k", str(source)), target)

    monkeypatch.setattr(folders, "open_storage", lambda _: Bucket())
    assert set(fetch_artifact("s3://b/k", tmp_path / "back").files) == {"a"}
