"""Folders in S3 and in archives, against moto's server."""

import io
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from qat_lib.errors import DataError, StorageError
from qatline.components.artifacts import Dataset
from qatline.components.settings import DataSettings
from qatline.components.steps.prepare_data import prepare_data_step
from qatline.components.storage.remote_folder import fetch_folder, folder_digest, is_remote_folder
from qatline.components.storage.s3 import S3Storage
from qatline.components.store.fingerprints import settings_files

# botocore 1.44 on Python 3.12 and later.
pytestmark = pytest.mark.filterwarnings("ignore:datetime.datetime.utcnow")


def is_image(name: str) -> bool:
    return name.endswith(".png")


def png(seed: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


def images(count: int = 12) -> dict[str, bytes]:
    found = {}
    for index in range(count):
        found[f"{('cat', 'dog')[index % 2]}/{index}.png"] = png(index)
    return found


def upload(s3: Any, files: dict[str, bytes], prefix: str = "pets/") -> None:
    for name, content in files.items():
        s3.put_object(Bucket="data", Key=prefix + name, Body=content)


def below(folder: Path) -> dict[str, bytes]:
    found = {}
    for path in folder.rglob("*"):
        if path.is_file():
            found[path.relative_to(folder).as_posix()] = path.read_bytes()
    return found


class Counting(S3Storage):
    """Notes what is downloaded, and may fail at one of the objects."""

    def __init__(self, client: Any, fail_at: int = -1) -> None:
        super().__init__(client)
        self.fetched: list[str] = []
        self.fail_at = fail_at

    def get_version(self, stored: Any, target: Path) -> Any:
        self.fetched.append(stored.location)
        if len(self.fetched) == self.fail_at:
            raise StorageError("cut short")
        return super().get_version(stored, target)


def test_fetch_folder_fetches_what_is_below_a_prefix(s3: Any, cache: Path) -> None:
    upload(s3, {**images(), "notes.txt": b"no", "cat/": b""})
    upload(s3, {"bird/1.png": png(1)}, prefix="pets2/")
    told: list[tuple[int, int]] = []
    folder = fetch_folder(
        "s3://data/pets", is_image, told=lambda done, total: told.append((done, total))
    )
    assert below(folder) == images()
    assert folder.is_relative_to(cache / "folders")
    assert told[-1] == (12, 12)
    assert sorted(below(fetch_folder("s3://data", is_image))) == sorted(
        ["pets2/bird/1.png", *(f"pets/{name}" for name in images())]
    )


def test_fetch_folder_fetches_again_what_changed(s3: Any, cache: Path) -> None:
    upload(s3, images())
    storage = Counting(s3)
    first = fetch_folder("s3://data/pets/", is_image, storage=storage)
    assert fetch_folder("s3://data/pets/", is_image, storage=storage) == first
    assert len(storage.fetched) == 12
    (first / "cat" / "0.png").write_bytes(b"cut")
    fetch_folder("s3://data/pets/", is_image, storage=storage)
    assert storage.fetched[12:] == ["s3://data/pets/cat/0.png"]
    assert below(first) == images()
    before = folder_digest("s3://data/pets/")
    upload(s3, {"cat/0.png": png(99)})
    second = fetch_folder("s3://data/pets/", is_image, storage=storage)
    assert (second / "cat" / "0.png").read_bytes() == png(99)
    assert second != first
    assert folder_digest("s3://data/pets/") != before


def test_fetch_folder_goes_on_after_a_fetch_that_was_cut_short(s3: Any, cache: Path) -> None:
    upload(s3, images())
    storage = Counting(s3, fail_at=7)
    with pytest.raises(StorageError, match="cut short"):
        fetch_folder("s3://data/pets", is_image, storage=storage)
    begun = len(storage.fetched)
    assert below(fetch_folder("s3://data/pets", is_image, storage=storage)) == images()
    assert len(storage.fetched) - begun <= 12 - 6 + 8  # threads that were at work meanwhile
    assert not list(cache.rglob("*.tmp"))


def test_fetch_folder_tells_of_an_object_that_changed(s3: Any, cache: Path) -> None:
    upload(s3, images())

    class Changing(S3Storage):
        def list(self, location: str) -> Any:
            found = super().list(location)
            s3.put_object(Bucket="data", Key="pets/dog/1.png", Body=png(50))
            return found

    with pytest.raises(StorageError, match=r"dog/1\.png changed while it was fetched: run again"):
        fetch_folder("s3://data/pets", is_image, storage=Changing(s3))


def test_fetch_folder_tells_that_nothing_is_there(s3: Any, cache: Path) -> None:
    with pytest.raises(StorageError, match=r"s3://data/none holds no file.*correct data\.path"):
        fetch_folder("s3://data/none", is_image)
    with pytest.raises(StorageError, match="S3 answers NoSuchBucket"):
        fetch_folder("s3://nowhere/none", is_image)
    with pytest.raises(
        StorageError, match=r"the bucket 'nowhere' does not exist: correct data\.path"
    ):
        fetch_folder("s3://nowhere/pets.tar", is_image)
    assert folder_digest("s3://data/none") is None
    assert folder_digest("s3://data/none.zip") is None


def test_fetch_folder_refuses_a_key_that_leads_out(s3: Any, cache: Path) -> None:
    class Hostile(S3Storage):
        def list(self, location: str) -> Any:
            from qatline.components.storage.stored_file import StoredFile

            return [StoredFile(location=f"{location}../../out.png", size=1, tag="t")]

    with pytest.raises(StorageError, match="leads out of its folder: remove that object"):
        fetch_folder("s3://data/pets", is_image, storage=Hostile(s3))


def write_archive(path: Path, files: dict[str, bytes]) -> Path:
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in files.items():
                archive.writestr(f"pets/{name}", content)
        return path
    with tarfile.open(path, "w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(f"./pets/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


@pytest.mark.parametrize("suffix", [".zip", ".tar"])
def test_fetch_folder_unpacks_an_archive(s3: Any, cache: Path, tmp_path: Path, suffix: str) -> None:
    archive = write_archive(tmp_path / f"pets{suffix}", images())
    s3.upload_file(str(archive), "data", archive.name)
    remote = f"s3://data/{archive.name}"
    assert is_remote_folder(remote)
    assert is_remote_folder(str(archive))
    assert not is_remote_folder(str(tmp_path))
    (tmp_path / "folder.zip").mkdir()
    assert not is_remote_folder(str(tmp_path / "folder.zip"))
    for location in (remote, str(archive)):
        folder = fetch_folder(location, is_image)
        assert folder.name == "pets"
        assert below(folder) == images()
        assert fetch_folder(location, is_image) == folder
    before = folder_digest(remote)
    s3.upload_file(str(write_archive(archive, images(4))), "data", archive.name)
    assert folder_digest(remote) != before
    assert below(fetch_folder(remote, is_image)) == images(4)


def test_fetch_folder_leaves_nothing_of_an_archive_that_is_refused(
    s3: Any, cache: Path, tmp_path: Path
) -> None:
    s3.put_object(Bucket="data", Key="pets.tar", Body=b"no archive" * 1000)
    with pytest.raises(DataError, match=r"pets\.tar can't be unpacked"):
        fetch_folder("s3://data/pets.tar", is_image)
    write_archive(tmp_path / "none.tar", {"notes.txt": b"no"})
    with pytest.raises(StorageError, match=r"none\.tar holds no file that is read here"):
        fetch_folder(str(tmp_path / "none.tar"), is_image)
    assert not list((cache / "folders").rglob("*.png"))
    with pytest.raises(StorageError, match=r"absent\.zip does not exist: correct data\.path"):
        fetch_folder(str(tmp_path / "absent.zip"), is_image)


@pytest.mark.parametrize("path", ["s3://data/pets", "s3://data/pets.zip", "pets.zip"])
def test_prepare_data_reads_images_from_elsewhere(
    s3: Any, cache: Path, tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch, progress: Any
) -> None:
    """The same images have the same fingerprint, wherever they come from."""
    monkeypatch.chdir(tmp_path)
    files = images(60)
    upload(s3, files)
    s3.upload_file(str(write_archive(tmp_path / "pets.zip", files)), "data", "pets.zip")
    for name, content in files.items():
        target = tmp_path / "here" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    prepared = {}
    for place in (path, "here"):
        out = tmp_path / f"out-{len(prepared)}"
        out.mkdir()
        data = DataSettings(kind="folder", path=place, calibration_samples=10)
        prepare_data_step(out, data=data, seed=0, progress=progress)
        prepared[place] = Dataset(out)
    elsewhere, here = prepared[path].info(), prepared["here"].info()
    assert elsewhere.fingerprint == here.fingerprint
    assert elsewhere.splits == here.splits
    assert (elsewhere.source, elsewhere.root) == (path, None)
    assert prepared[path].shards_file("test").is_file()
    settings = {"data": DataSettings(kind="folder", path=path).model_dump()}
    before = settings_files(settings)
    assert len(before["data.path"]) >= 32
    upload(s3, {"cat/0.png": png(99)})
    changed = settings_files(settings) != before
    assert changed == (path == "s3://data/pets")


@pytest.mark.matrix
@pytest.mark.parametrize(
    "path", ["s3://data/records", "s3://data/records/a*", "s3://data/records/a.tfrecord"]
)
def test_prepare_data_reads_tfrecords_in_s3(
    s3: Any, cache: Path, tmp_path: Path, path: str, progress: Any
) -> None:
    import tensorflow as tf

    file = tmp_path / "a.tfrecord"
    with tf.io.TFRecordWriter(str(file)) as writer:
        for index in range(40):
            values = tf.train.Feature(float_list=tf.train.FloatList(value=[index, 1]))
            label = tf.train.Feature(int64_list=tf.train.Int64List(value=[index % 2]))
            features = tf.train.Features(feature={"x": values, "y": label})
            writer.write(tf.train.Example(features=features).SerializeToString())
    upload(s3, {"a.tfrecord": file.read_bytes(), "info.json": b"{}"}, "records/")
    settings = {
        "kind": "tfrecord",
        "path": path,
        "features": {"x": {"shape": [2]}, "y": {"dtype": "int64"}},
        "target_columns": ["y"],
    }
    before = settings_files({"data": settings})
    out = tmp_path / "out"
    out.mkdir()
    prepare_data_step(out, data=DataSettings.model_validate(settings), seed=0, progress=progress)
    info = Dataset(out).info()
    assert (info.source, sum(info.splits.values())) == (path, 40)
    upload(s3, {"a.tfrecord": file.read_bytes() * 2}, "records/")
    assert before != settings_files({"data": settings}) != {}
