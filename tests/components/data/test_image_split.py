"""Shards: written by prepare_data, read anywhere, checked."""

import json
import re
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from qat_lib.errors import DataError
from qatline.components.artifacts import Dataset
from qatline.components.data.image_split import ShardSplit, write_shards
from qatline.components.data.part import ImageFiles
from qatline.components.data.reader import load_split, open_split, tf_dataset
from qatline.components.runtime.failures import as_data_error
from qatline.components.settings import DataSettings
from qatline.components.steps.prepare_data import prepare_data_step
from qatline.components.support.events import NullProgress

Make = Callable[..., Path]
SPLITS = ("train", "calibration", "validation", "test")


def prepare(root: Path, storage: str, progress: Any = None) -> tuple[Path, dict[str, float]]:
    folder = root.parent / storage
    folder.mkdir()
    settings = DataSettings(kind="folder", path=str(root), storage=storage)  # type: ignore[arg-type]
    return folder, prepare_data_step(
        folder, data=settings, seed=0, progress=progress or NullProgress()
    )


@pytest.fixture
def shards(image_folder: Make) -> Path:
    return prepare(image_folder(), "shards")[0]


def test_shards_give_the_pixels_of_the_files(image_folder: Make) -> None:
    root = image_folder()
    (files, plain), (shards, metrics) = prepare(root, "files"), prepare(root, "shards")
    assert metrics == plain
    expected = {split: load_split(files, split, raw=True) for split in SPLITS}
    shutil.rmtree(root)
    shutil.rmtree(files)
    moved = shards.rename(shards.with_name("elsewhere"))
    for split, (images, labels) in expected.items():
        found, found_labels = load_split(moved, split, raw=True)
        np.testing.assert_array_equal(found, images)
        np.testing.assert_array_equal(found_labels, labels)
    info = Dataset(moved).info()
    assert info.root is None
    assert isinstance(open_split(moved, "train"), ShardSplit)


def test_shards_are_plain_tar_files(image_folder: Make) -> None:
    root = image_folder()
    out, _ = prepare(root, "shards")
    with tarfile.open(out / "train-00000.tar") as tar:
        members = tar.getmembers()
        index = json.loads((out / "train_shards.json").read_text())
        assert [member.name for member in members] == [entry[3] for entry in index["images"]]
        for member, (_, offset, size, name) in zip(members, index["images"], strict=True):
            stream = tar.extractfile(member)
            assert stream is not None
            assert stream.read() == (root / name).read_bytes()
            assert (member.offset_data, member.size) == (offset, size)


def test_equal_images_make_equal_shards(image_folder: Make) -> None:
    root = image_folder()
    first, _ = prepare(root, "shards")
    first = first.rename(first.with_name("first"))
    second, _ = prepare(root, "shards")
    for path in sorted(first.iterdir()):
        assert path.read_bytes() == (second / path.name).read_bytes(), path.name


def test_a_full_shard_is_followed_by_the_next(tmp_path: Path) -> None:
    long = "folder/" * 30 + "c.png"
    images = [("a.png", b"a" * 700), ("b.png", b"b" * 3), (long, b"c" * 512)]
    write_shards(Dataset(tmp_path), "train", images, shard_bytes=2048)
    index = json.loads((tmp_path / "train_shards.json").read_text())
    assert index["shards"] == ["train-00000.tar", "train-00001.tar"]
    for (shard, offset, size, name), image in zip(index["images"], images, strict=True):
        assert (name, shard) == (image[0], int(name == long))
        data = (tmp_path / index["shards"][shard]).read_bytes()
        assert data[offset : offset + size] == image[1]


def test_an_empty_part_has_no_shard(tmp_path: Path) -> None:
    write_shards(Dataset(tmp_path), "train", [])
    assert json.loads((tmp_path / "train_shards.json").read_text()) == {"shards": [], "images": []}


def test_no_indices_give_no_pixels(shards: Path) -> None:
    assert open_split(shards, "test").inputs(np.array([], np.int64)).shape == (0, 6, 8, 3)


def test_an_image_that_changes_meanwhile_is_told(image_folder: Make) -> None:
    root = image_folder()

    class Changes(NullProgress):
        def update(self, phase: str, *rest: Any, **more: Any) -> None:
            if phase.startswith("writing"):
                for path in root.rglob("*.png"):
                    path.write_bytes(path.read_bytes() + b"x")

    with pytest.raises(DataError, match="has changed while it was prepared"):
        prepare(root, "shards", Changes())


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"shards": []}',
        '{"shards": ["../a.tar"], "images": []}',
        '{"shards": [1], "images": []}',
        '{"shards": [], "images": [[0]]}',
        '{"shards": [], "images": [["a", 0, 0, "b"]]}',
    ],
)
def test_a_damaged_index_is_told(shards: Path, text: str) -> None:
    (shards / "test_shards.json").write_text(text)
    with pytest.raises(DataError, match=r"test_shards\.json"):
        open_split(shards, "test")


@pytest.mark.parametrize(
    ("place", "value"), [(0, 1), (0, -1), (1, -1), (1, 10**9), (2, 10**9), (2, -1)]
)
def test_an_image_outside_of_its_shard_is_told(shards: Path, place: int, value: int) -> None:
    index = json.loads((shards / "test_shards.json").read_text())
    index["images"][0][place] = value
    (shards / "test_shards.json").write_text(json.dumps(index))
    with pytest.raises(DataError, match=r"outside of its shard\. Run prepare_data again"):
        open_split(shards, "test")


def test_a_missing_or_cut_shard_is_told(shards: Path) -> None:
    shard = shards / "test-00000.tar"
    shard.write_bytes(shard.read_bytes()[:600])
    with pytest.raises(DataError, match="outside of its shard"):
        open_split(shards, "test")
    shard.unlink()
    with pytest.raises(DataError, match=r"test-00000\.tar can't be read: No such file"):
        open_split(shards, "test")


def test_a_shard_cut_anywhere_is_refused_or_whole(shards: Path) -> None:
    shard = shards / "test-00000.tar"
    content, expected = shard.read_bytes(), load_split(shards, "test", raw=True)[0]
    entries = json.loads((shards / "test_shards.json").read_text())["images"]
    end = max(offset + size for _, offset, size, _ in entries)
    refused = 0
    for cut in range(0, len(content), 101):
        shard.write_bytes(content[:cut])
        if cut < end:
            with pytest.raises(DataError, match="outside of its shard"):
                open_split(shards, "test")
            refused += 1
        else:  # only padding is cut
            np.testing.assert_array_equal(load_split(shards, "test", raw=True)[0], expected)
    assert refused


def test_damaged_bytes_are_told(shards: Path) -> None:
    shard = shards / "test-00000.tar"
    part = open_split(shards, "test")
    shard.write_bytes(bytes(shard.stat().st_size))
    with pytest.raises(DataError, match=r"the image (cat|dog)/\d+\.png is broken"):
        part.inputs(np.array([0]))


def test_an_image_of_another_size_is_told(shards: Path) -> None:
    info = json.loads((shards / "dataset.json").read_text())
    (shards / "dataset.json").write_text(
        json.dumps({**info, "inputs": {"x": {"shape": [6, 9, 3], "dtype": "uint8"}}})
    )
    with pytest.raises(DataError, match=r"is \(6, 8, 3\), expected \(6, 9, 3\)"):
        open_split(shards, "test").inputs(np.array([0]))


def photographs(root: Path, plain: int) -> Path:
    """Write 40 images of two classes: ``plain`` usual JPEG files, then of several kinds."""
    generator = np.random.default_rng(0)
    turned = Image.Exif()
    turned[0x0112] = 3
    kinds: list[dict[str, Any]] = [{"exif": turned}, {"mode": "L"}, {"mode": "CMYK"}, {"png": True}]
    for index in range(40):
        options = dict(kinds[index % 4]) if index >= plain else {}
        noise = generator.integers(0, 256, (3, 4, 3), np.uint8)
        image = Image.fromarray(noise).resize((20, 16), Image.Resampling.BICUBIC)
        image = image.convert(options.pop("mode", "RGB"))
        folder = root / "ab"[index % 2]
        folder.mkdir(parents=True, exist_ok=True)
        suffix = "png" if options.pop("png", False) else "jpg"
        image.save(folder / f"{index:02d}.{suffix}", **options)
    return root


@pytest.mark.parametrize("storage", ["files", "shards"])
@pytest.mark.parametrize("plain", [40, 38, 0])
def test_tensorflow_reads_the_pixels_of_pillow(tmp_path: Path, storage: str, plain: int) -> None:
    out, _ = prepare(photographs(tmp_path / "images", plain), storage)
    part = open_split(out, "train")
    assert isinstance(part, ImageFiles)
    assert part.is_plain() or plain < 40
    batches = list(tf_dataset(out, "train", 7).as_numpy_iterator())
    x, y = load_split(out, "train")
    np.testing.assert_array_equal(np.concatenate([batch[0] for batch in batches]), x)
    np.testing.assert_array_equal(np.concatenate([batch[1] for batch in batches]), y)


def test_image_damaged_after_preparation_is_reported(tmp_path: Path) -> None:
    root = photographs(tmp_path / "images", 40)
    out, _ = prepare(root, "files")
    for path in root.rglob("*.jpg"):
        path.write_bytes(path.read_bytes()[:-40])  # without its end
    with pytest.raises(tf.errors.OpError) as found:
        list(tf_dataset(out, "train", 4))
    assert re.search(r"image .*\.jpg is broken", str(as_data_error(found.value)))


def test_jpeg_that_libjpeg_refuses_is_reported(tmp_path: Path) -> None:
    root = photographs(tmp_path / "images", 40)
    out, _ = prepare(root, "files")
    batches = tf_dataset(out, "train", 4)
    for path in root.rglob("*.jpg"):
        data = path.read_bytes()
        place = data.index(b"\xff\xc4")  # the tables of Huffman's code
        path.write_bytes(data[: place + 4] + b"\x77" + data[place + 5 :])
    with pytest.raises(tf.errors.OpError) as found:
        list(batches)
    assert "Run prepare_data again" in str(as_data_error(found.value))
