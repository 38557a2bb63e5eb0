"""Storage: the same checks for a local folder and for S3.

S3 is moto's server over real HTTP.
"""

import hashlib
import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qat_lib.errors import StorageError
from qatline.components.artifacts import Baseline, Dataset
from qatline.components.settings import DataSettings, ModelSettings, TrainingSettings
from qatline.components.steps.prepare_data import prepare_data_step
from qatline.components.storage import s3 as s3_storage
from qatline.components.storage.s3 import S3Storage, s3_client, split_location
from qatline.components.storage.storage import (
    LocalStorage,
    Storage,
    StoredFile,
    fetch_cached,
    open_storage,
)
from qatline.components.store.directories import describe, publish
from qatline.components.store.fingerprints import settings_files
from qatline.components.store.remote_directories import fetch_artifact, store_artifact
from qatline.components.support.events import NullProgress
from qatline.components.tracking.mlflow_run import Artifact
from qatline.components.tracking.step_run import step_run
from qatline.components.tracking.store import ensure_store

# botocore 1.44 on Python 3.12 and later.
pytestmark = pytest.mark.filterwarnings("ignore:datetime.datetime.utcnow")


@pytest.fixture(params=["local", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Storage, str]:
    """A storage and the location that everything is put below."""
    if request.param == "local":
        return LocalStorage(), str(tmp_path / "store")
    return S3Storage(request.getfixturevalue("s3")), "s3://data/some/prefix"


def write(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def test_what_was_put_comes_back(place: tuple[Storage, str], tmp_path: Path) -> None:
    storage, root = place
    content = os.urandom(100_000)
    put = storage.put(write(tmp_path / "a", content), f"{root}/x/a.bin")
    assert put == storage.describe(f"{root}/x/a.bin")
    assert put.size == len(content)
    target = tmp_path / "new" / "folder" / "b"
    assert storage.get(f"{root}/x/a.bin", target) == put
    assert target.read_bytes() == content
    assert [path.name for path in target.parent.iterdir()] == ["b"]


def test_the_tag_changes_with_the_content(place: tuple[Storage, str], tmp_path: Path) -> None:
    storage, root = place
    tags = [
        storage.put(write(tmp_path / "a", text), f"{root}/a").tag
        for text in (b"one", b"two", b"one")
    ]
    assert tags[0] == tags[2] != tags[1]


def test_a_listing_is_sorted_and_complete(place: tuple[Storage, str], tmp_path: Path) -> None:
    storage, root = place
    for name in ("b", "a/2", "a/1"):
        storage.put(write(tmp_path / "f", name.encode()), f"{root}/{name}")
    found = storage.list(root)
    assert [file.location.removeprefix(f"{root}/") for file in found] == ["a/1", "a/2", "b"]
    assert [file.size for file in found] == [3, 3, 1]
    assert found == [storage.describe(file.location) for file in found]


def test_missing_file_is_none_or_an_error(place: tuple[Storage, str], tmp_path: Path) -> None:
    storage, root = place
    assert storage.describe(f"{root}/nothing") is None
    assert storage.list(f"{root}/nothing") == []
    with pytest.raises(StorageError, match="nothing"):
        storage.get(f"{root}/nothing", tmp_path / "target")
    assert not (tmp_path / "target").exists()


def test_a_listing_goes_over_pages(s3: Any) -> None:
    class SmallPages:
        """A client whose pages hold two objects."""

        def get_paginator(self, name: str) -> Any:
            paginator = s3.get_paginator(name)

            class Paginator:
                def paginate(self, **options: Any) -> Any:
                    return paginator.paginate(**options, PaginationConfig={"PageSize": 2})

            return Paginator()

    for index in range(5):
        s3.put_object(Bucket="data", Key=f"many/{index:04d}", Body=b"x")
    assert len(S3Storage(SmallPages()).list("s3://data/many/")) == 5


def test_large_files_go_in_parts(s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_storage, "_PART_BYTES", 5 << 20)
    content = os.urandom(11 << 20)
    storage = S3Storage(s3)
    stored = storage.put(write(tmp_path / "big", content), "s3://data/big")
    assert stored.tag.endswith("-3")
    storage.get("s3://data/big", tmp_path / "back")
    assert (
        hashlib.sha256((tmp_path / "back").read_bytes()).digest()
        == hashlib.sha256(content).digest()
    )


def test_object_changed_during_fetch_is_detected(s3: Any, tmp_path: Path) -> None:
    class Changing:
        """Replaces the object right after it was downloaded."""

        def __getattr__(self, name: str) -> Any:
            return getattr(s3, name)

        def download_file(self, *args: Any, **kwargs: Any) -> None:
            s3.download_file(*args, **kwargs)
            s3.put_object(Bucket="data", Key="a", Body=b"two")

    s3.put_object(Bucket="data", Key="a", Body=b"one")
    with pytest.raises(StorageError, match="changed while it was fetched"):
        S3Storage(Changing()).get("s3://data/a", tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


def test_a_bucket_that_does_not_exist_is_told(s3: Any, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="S3 answers NoSuchBucket"):
        S3Storage(s3).list("s3://nowhere/x")
    with pytest.raises(StorageError, match="s3://nowhere/x"):
        S3Storage(s3).put(write(tmp_path / "a", b"1"), "s3://nowhere/x")


def test_an_endpoint_that_is_away_is_told(monkeypatch: pytest.MonkeyPatch, s3: Any) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://127.0.0.1:{port}")
    monkeypatch.setattr(s3_storage, "_ATTEMPTS", 1)
    with pytest.raises(StorageError, match="S3 can't be reached or used"):
        S3Storage(s3_client()).describe("s3://data/a")


def test_missing_credentials_are_told(
    monkeypatch: pytest.MonkeyPatch, s3: Any, tmp_path: Path
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(StorageError, match=r"no credentials for S3\. Set AWS_ACCESS_KEY_ID"):
        S3Storage(s3_client()).describe("s3://data/a")


@pytest.mark.parametrize(
    "location", ["s3://", "s3://bucket", "s3://bucket/", "s3:///key", "bucket/key"]
)
def test_locations_of_another_form_are_refused(location: str) -> None:
    with pytest.raises(StorageError, match="expected s3://bucket/key"):
        split_location(location)


def test_the_scheme_chooses_the_storage(s3: Any) -> None:
    assert isinstance(open_storage("/some/path"), LocalStorage)
    assert isinstance(open_storage("s3://data/x"), S3Storage)
    with pytest.raises(StorageError, match="expected a path or s3://bucket/key"):
        open_storage("gs://bucket/key")


class CountingStorage(LocalStorage):
    """Counts what is fetched."""

    fetched = 0

    def get(self, location: str, target: Path) -> StoredFile:
        self.fetched += 1
        return super().get(location, target)


def test_a_file_is_fetched_once_until_it_changes(cache: Path, tmp_path: Path) -> None:
    storage, remote = CountingStorage(), write(tmp_path / "data.npz", b"one")
    first = fetch_cached(str(remote), storage)
    assert first == fetch_cached(str(remote), storage)
    assert (first.read_bytes(), first.name, storage.fetched) == (b"one", "data.npz", 1)
    remote.write_bytes(b"two")
    assert fetch_cached(str(remote), storage).read_bytes() == b"two"
    assert storage.fetched == 2


def test_truncated_cached_file_is_fetched_again(cache: Path, tmp_path: Path) -> None:
    storage, remote = CountingStorage(), write(tmp_path / "data.npz", b"whole")
    fetch_cached(str(remote), storage).write_bytes(b"w")
    assert fetch_cached(str(remote), storage).read_bytes() == b"whole"


def test_s3_data_set_is_prepared_and_keyed(s3: Any, cache: Path, tmp_path: Path) -> None:
    def upload(seed: int) -> None:
        images = np.random.default_rng(seed).integers(0, 256, (60, 4, 4, 1), np.uint8)
        np.savez(tmp_path / "data.npz", x=images, y=np.arange(60) % 3)
        s3.upload_file(str(tmp_path / "data.npz"), "data", "sets/data.npz")

    settings = DataSettings(kind="npz", path="s3://data/sets/data.npz")
    upload(0)
    before = settings_files({"data": settings.model_dump()})
    out = tmp_path / "out"
    out.mkdir()
    prepare_data_step(out, data=settings, seed=0, progress=NullProgress())
    assert sum(Dataset(out).info().splits.values()) == 60
    assert before == settings_files({"data": settings.model_dump()})
    upload(1)
    assert before != settings_files({"data": settings.model_dump()})


def test_missing_s3_data_set_is_reported(s3: Any, cache: Path, tmp_path: Path) -> None:
    settings = DataSettings(kind="npz", path="s3://data/nothing.npz")
    with pytest.raises(
        StorageError, match=r"s3://data/nothing\.npz does not exist.*correct data\.path"
    ):
        prepare_data_step(tmp_path, data=settings, seed=0, progress=NullProgress())
    assert settings_files({"data": settings.model_dump()}) == {}


@pytest.mark.matrix
def test_s3_model_and_weights_are_fetched_and_keyed(
    s3: Any, cache: Path, tmp_path: Path, digits_dataset: Path
) -> None:
    import keras

    from qatline.components.steps.train_baseline import train_baseline_step

    layers = [keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(10)]
    network = keras.Sequential(layers)
    network.save(tmp_path / "net.keras")
    network.save_weights(tmp_path / "net.weights.h5")
    model = ModelSettings(name="s3://data/net.keras", weights="s3://data/net.weights.h5")
    settings = {"model": model.model_dump()}
    out = tmp_path / "out"
    out.mkdir()

    def evaluate() -> Mapping[str, float]:
        return train_baseline_step(
            digits_dataset,
            out,
            model=model,
            training=TrainingSettings(),
            seed=0,
            progress=NullProgress(),
        )

    with pytest.raises(StorageError, match=r"s3://data/net\.keras does not.*correct model\.name"):
        evaluate()
    s3.upload_file(str(tmp_path / "net.keras"), "data", "net.keras")
    with pytest.raises(StorageError, match=r"correct model\.weights"):
        evaluate()
    s3.upload_file(str(tmp_path / "net.weights.h5"), "data", "net.weights.h5")
    assert evaluate()["parameters"] == 650
    info = Baseline(out).info()
    assert (info.source, info.trained_here) == ("s3://data/net.keras", False)
    before = settings_files(settings)
    assert sorted(before) == ["model.name", "model.weights"]
    s3.put_object(Bucket="data", Key="net.weights.h5", Body=b"other")
    assert settings_files(settings)["model.name"] == before["model.name"]
    assert settings_files(settings)["model.weights"] != before["model.weights"]


@pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy")
def test_artifacts_of_mlflow_follow_the_same_endpoint(
    s3: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    progress: Any,
    new_store: Callable[[Path], str],
) -> None:
    uri = new_store(tmp_path)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_ID", ensure_store(uri, "remote", "s3://data/mlflow"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    with step_run("evaluate", warn=progress.warn) as tracker:
        tracker.record(Artifact(write(tmp_path / "plan.json", b"{}")))
    (stored,) = S3Storage(s3).list("s3://data/mlflow/")
    assert stored.location.endswith("/artifacts/plan.json")


@pytest.mark.parametrize("method", ["get", "put"])
def test_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    from qatline.components.storage import storage as module

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    source = write(tmp_path / "a", b"1")
    monkeypatch.setattr(module.shutil, "copyfile", full)
    call: dict[str, Callable[[], Any]] = {
        "get": lambda: LocalStorage().get(str(source), tmp_path / "b"),
        "put": lambda: LocalStorage().put(source, str(tmp_path / "b")),
    }
    with pytest.raises(StorageError, match="the disk is full"):
        call[method]()
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_fetch_cached_keeps_its_files_in_one_place(cache: Path, tmp_path: Path) -> None:
    found = fetch_cached(str(write(tmp_path / "data.npz", b"one")), CountingStorage())
    assert found.parents[1] == cache / "objects"
    assert len(found.parent.name) == 32


@pytest.mark.parametrize("tag", ["a", "z"])
@pytest.mark.parametrize("written", [False, True])
def test_fetch_cached_refuses_file_changed_during_fetch(
    cache: Path, tmp_path: Path, tag: str, written: bool
) -> None:
    class Changing(LocalStorage):
        def describe(self, location: str) -> StoredFile:
            return StoredFile(location=location, size=3, tag="m")

        def get(self, location: str, target: Path) -> StoredFile:
            if written:
                write(target, b"new")
            return StoredFile(location=location, size=3, tag=tag)

    with pytest.raises(StorageError, match="changed while it was fetched"):
        fetch_cached("somewhere/data.npz", Changing())
    assert [path for path in cache.rglob("*") if path.is_file()] == []


def test_fetch_cached_uses_cache_from_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = str(write(tmp_path / "data.npz", b"one"))
    monkeypatch.delenv("QATLINE_CACHE", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert fetch_cached(remote).is_relative_to(tmp_path / "home" / ".cache" / "qatline")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert fetch_cached(remote).is_relative_to(tmp_path / "xdg" / "qatline")
    monkeypatch.setenv("QATLINE_CACHE", str(tmp_path / "own"))
    assert fetch_cached(remote).is_relative_to(tmp_path / "own" / "objects")


def test_what_is_removed_is_gone(place: tuple[Storage, str], tmp_path: Path) -> None:
    storage, root = place
    storage.put(write(tmp_path / "a", b"1"), f"{root}/a")
    storage.remove(f"{root}/a")
    storage.remove(f"{root}/a")
    assert storage.describe(f"{root}/a") is None
    assert storage.list(root) == []


@pytest.mark.matrix
def test_finished_folder_comes_back(place: tuple[Storage, str], tmp_path: Path) -> None:
    storage, root = place
    work = tmp_path / "work"
    write(work / "inside" / "a", b"1")
    publish(work, tmp_path / "final", describe(work, metrics={"accuracy": 0.5}))
    storage.put(tmp_path / "final" / "inside" / "a", f"{root}/folder/left")
    store_artifact(tmp_path / "final", f"{root}/folder")
    manifest = fetch_artifact(f"{root}/folder", tmp_path / "back")
    assert (set(manifest.files), manifest.metrics) == ({"inside/a"}, {"accuracy": 0.5})
    storage.remove(f"{root}/folder/manifest.json")
    with pytest.raises(StorageError, match="is not finished"):
        fetch_artifact(f"{root}/folder", tmp_path / "again")
