"""TFRecords: features of all encodings, parts, and damaged shards."""

import gzip
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from qat_lib.errors import DataError, QatlineError
from qatline.components.artifacts import Dataset
from qatline.components.data.reader import load_split
from qatline.components.data.tfrecord_source import is_record_file
from qatline.components.settings import DataSettings, TaskSettings
from qatline.components.steps.prepare_data import prepare_data_step
from qatline.components.store.fingerprints import settings_files
from qatline.components.support.events import NullProgress

COUNT = 60
SPLITS = ("train", "calibration", "validation", "test")
FEATURES = {"signal": {"shape": [4, 2]}, "label": {"dtype": "int64"}}

Record = dict[str, Any]


def example(**values: Any) -> bytes:
    """Return a serialized record of arrays, numbers and bytes."""
    features = {}
    for name, value in values.items():
        if isinstance(value, bytes):
            kind = {"bytes_list": tf.train.BytesList(value=[value])}
        else:
            array = np.asarray(value)
            is_float = array.dtype.kind == "f"
            whole = (tf.train.FloatList if is_float else tf.train.Int64List)(value=array.ravel())
            kind = {"float_list" if is_float else "int64_list": whole}
        features[name] = tf.train.Feature(**kind)
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


def signal(index: int) -> Record:
    return {"signal": np.arange(8.0) + index, "label": index % 3}


def write(path: Path, records: list[bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    kind = "GZIP" if path.suffix == ".gz" else ""
    with tf.io.TFRecordWriter(str(path), kind) as writer:
        for record in records:
            writer.write(record)
    return path


def shards(folder: Path, change: Callable[[int, Record], Record] | None = None) -> Path:
    """Write 60 signals into two shards, the second compressed."""
    records = [signal(index) for index in range(COUNT)]
    if change is not None:
        records = [change(index, record) for index, record in enumerate(records)]
    lines = [example(**record) for record in records]
    write(folder / "a.tfrecord", lines[:40])
    write(folder / "b.tfrecord.gz", lines[40:])
    return folder


def prepare(folder: Path, path: Path | str, **data: Any) -> Path:
    given = {"features": FEATURES, "target_columns": ["label"], **data}
    settings = DataSettings.model_validate({"kind": "tfrecord", "path": str(path), **given})
    out = folder / "out"
    out.mkdir()
    prepare_data_step(out, data=settings, task=TaskSettings(), seed=0, progress=NullProgress())
    return out


def together(out: Path) -> tuple[Any, np.ndarray]:
    parts = [load_split(out, split, raw=True) for split in SPLITS]
    return np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts])


@pytest.mark.parametrize("place", ["records", "records/*", "records/?.tfrecord*"])
def test_read_tfrecords_joins_all_shards(tmp_path: Path, place: str) -> None:
    shards(tmp_path / "records")
    out = prepare(tmp_path, tmp_path / place)
    info = Dataset(out).info()
    assert (info.task, info.shapes, len(info.classes)) == ("classification", (4, 2), 3)
    x, y = together(out)
    assert sorted(x[:, 0, 0]) == list(range(COUNT))
    np.testing.assert_array_equal(y, x[:, 0, 0] % 3)
    assert load_split(out, "test")[0].dtype == np.float32


def test_read_tfrecords_reads_one_file(tmp_path: Path) -> None:
    out = prepare(tmp_path, shards(tmp_path / "records") / "a.tfrecord")
    assert sum(Dataset(out).info().splits.values()) == 40


def test_read_tfrecords_keeps_the_parts_of_folders(tmp_path: Path) -> None:
    for part, count in (("train", 40), ("val", 7), ("test", 9)):
        lines = [example(**signal(index)) for index in range(count)]
        write(tmp_path / "records" / part / "x.tfrecord-00000-of-00001", lines)
    splits = Dataset(prepare(tmp_path, tmp_path / "records")).info().splits
    assert splits == {"train": 30, "calibration": 10, "validation": 7, "test": 9}


def png(pixels: np.ndarray) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, format="PNG")
    return stream.getvalue()


def scene(index: int, size: tuple[int, int] = (6, 8)) -> Record:
    pixels = np.random.default_rng(index).integers(0, 256, (*size, 3), np.uint8)
    return {"image": png(pixels), "mask": png(pixels[..., 0] % 3)}


IMAGES = {
    "features": {"image": {"encoding": "image"}, "mask": {"encoding": "image"}},
    "target_columns": ["mask"],
}


@pytest.mark.parametrize("size", [None, (12, 16)])
def test_read_tfrecords_decodes_images_and_masks(tmp_path: Path, size: Any) -> None:
    write(tmp_path / "a.tfrecord", [example(**scene(index)) for index in range(20)])
    out = prepare(tmp_path, tmp_path / "a.tfrecord", **IMAGES, image_size=size)
    info, preprocessing = Dataset(out).info(), Dataset(out).preprocessing()
    shape = size or (6, 8)
    assert (info.task, info.shapes, info.target_shape) == ("segmentation", (*shape, 3), shape)
    assert (preprocessing.color, preprocessing.resize) == ("rgb", "bilinear" if size else None)
    images, masks = together(out)
    if size is None:
        np.testing.assert_array_equal(masks, images[..., 0] % 3)
    else:
        assert set(np.unique(masks)) == {0, 1, 2}


def test_read_tfrecords_skips_broken_images_on_request(tmp_path: Path) -> None:
    records = [{"image": scene(index)["image"], "label": index % 2} for index in range(20)]
    records[4]["image"] = b"no image"
    write(tmp_path / "a.tfrecord", [example(**record) for record in records])
    given = {
        "features": {"image": {"encoding": "image"}, "label": {"dtype": "int64"}},
        "target_columns": ["label"],
    }
    with pytest.raises(DataError, match=r"a\.tfrecord, record 4, 'image' is broken"):
        prepare(tmp_path, tmp_path / "a.tfrecord", **given)
    (tmp_path / "again").mkdir()
    out = prepare(tmp_path / "again", tmp_path / "a.tfrecord", **given, skip_broken=True)
    assert sum(Dataset(out).info().splits.values()) == 19


def test_read_tfrecords_names_several_inputs(tmp_path: Path) -> None:
    def record(index: int) -> Record:
        pixels = np.full((2, 3, 1), index, np.uint8)
        numbers = {"age": float(index), "size": index, "price": index / 2, "rooms": index / 4}
        return {"pixels": pixels.tobytes(), "gray": pixels, **numbers}

    write(tmp_path / "a.tfrecord", [example(**record(index)) for index in range(COUNT)])
    given = {
        "features": {
            "pixels": {"dtype": "uint8", "shape": [2, 3, 1], "encoding": "bytes"},
            "gray": {"dtype": "uint8", "shape": [2, 3, 1]},
            "age": {},
            "size": {"dtype": "int64"},
            "price": {},
            "rooms": {},
        },
        "target_columns": ["price", "rooms"],
    }
    out = prepare(tmp_path, tmp_path / "a.tfrecord", **given)
    info = Dataset(out).info()
    assert info.shapes == {"pixels": (2, 3, 1), "gray": (2, 3, 1), "features": (2,)}
    assert {name: each.dtype for name, each in info.inputs.items()} == {
        "pixels": "uint8",
        "gray": "uint8",
        "features": "float32",
    }
    x, y = load_split(out, "train", raw=True)
    np.testing.assert_array_equal(x["pixels"], x["gray"])
    np.testing.assert_array_equal(x["features"][:, 0], x["gray"][:, 0, 0, 0])
    np.testing.assert_array_equal(y, x["features"] / [2, 4])


def test_result_depends_on_the_shards_of_a_pattern(tmp_path: Path) -> None:
    shards(tmp_path / "records")
    settings = {"data": {"kind": "tfrecord", "path": str(tmp_path / "records" / "*.tfrecord")}}
    before = settings_files(settings)
    write(tmp_path / "records" / "c.tfrecord", [example(**signal(0))])
    assert before != settings_files(settings) != {}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.tfrecord", True),
        ("train/a.tfrecords.gz", True),
        ("mnist-train.tfrecord-00000-of-00010", True),
        ("a.tfrec", True),
        ("dataset_info.json", False),
        ("a.tfrecord.index", False),
    ],
)
def test_is_record_file_knows_the_usual_names(name: str, expected: bool) -> None:
    assert is_record_file(name) == expected


# ------------------------------------------------------------------ damaged data
def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:-size])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(bytes(content))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda root: cut(root / "a.tfrecord", 5), r"a\.tfrecord is truncated .* after 39 records"),
        (lambda root: flip(root / "a.tfrecord"), r"a\.tfrecord is truncated or damaged after \d+ "),
        (lambda root: cut(root / "b.tfrecord.gz", 50), r"b\.tfrecord\.gz is truncated or damaged"),
        (
            lambda root: (root / "b.tfrecord.gz").write_bytes(
                gzip.compress(gzip.decompress((root / "b.tfrecord.gz").read_bytes())[:-5])
            ),
            r"b\.tfrecord\.gz is truncated or damaged after 19 records",
        ),
        (lambda root: (root / "a.tfrecord").write_text("no records"), "truncated .* after 0"),
        (
            lambda root: [path.unlink() for path in root.iterdir()],
            r"such as \*\.tfrecord, found no",
        ),
        (
            lambda root: [write(path, []) for path in root.iterdir()],
            "records: expected records in the train part, found none",
        ),
        (lambda root: write(root / "c.tfrecord", [b"\xff"]), "record 0: expected a tf.train.Exam"),
    ],
)
def test_a_damaged_shard_is_named(
    tmp_path: Path, damage: Callable[[Path], object], message: str
) -> None:
    root = shards(tmp_path / "records")
    damage(root)
    with pytest.raises(DataError, match=message):
        prepare(tmp_path, root)


def put(**values: Any) -> Callable[[int, Record], Record]:
    """Return a change of the record 5 of the second shard."""
    return lambda index, record: {**record, **values} if index == 45 else record


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (put(signal=np.arange(7.0)), {}, r"expected 8 values of the feature 'signal' for .*\[4, 2"),
        (put(label=1.5), {}, "expected int64_list as the feature 'label', received float_list"),
        (put(label=[1, 2]), {}, r"expected 1 values of the feature 'label' .* received 2"),
        (put(label=-1), {}, "received -1"),
        (put(label=7), {"classes": ["a", "b", "c"]}, "received 7"),
        (put(signal=np.full(8, np.nan)), {}, "holds NaN or infinity"),
        (
            lambda index, record: {"label": 0} if index == 45 else record,
            {},
            "expected the feature 'signal', received label",
        ),
        (
            put(label=300),
            {"features": {**FEATURES, "label": {"dtype": "uint8"}}},
            "expected uint8 as the feature 'label', received 300",
        ),
    ],
)
def test_a_wrong_record_is_named(
    tmp_path: Path,
    change: Callable[[int, Record], Record],
    options: dict[str, Any],
    message: str,
) -> None:
    root = shards(tmp_path / "records", change)
    with pytest.raises(DataError, match=message) as caught:
        prepare(tmp_path, root, **options)
    assert f"{root}/b.tfrecord.gz, record 5" in str(caught.value)


def test_a_part_without_records_is_refused(tmp_path: Path) -> None:
    for part in ("train", "test"):
        write(
            tmp_path / "records" / part / "a.tfrecord",
            [example(**signal(index)) for index in range(40 if part == "train" else 0)],
        )
    with pytest.raises(DataError, match="expected records in the test part, found none"):
        prepare(tmp_path, tmp_path / "records")


def test_a_mask_of_another_size_is_refused(tmp_path: Path) -> None:
    records = [scene(index) for index in range(9)]
    records[7]["mask"] = png(np.zeros((5, 8), np.uint8))
    write(tmp_path / "a.tfrecord", [example(**record) for record in records])
    message = r"the mask of .*a\.tfrecord, record 7 is 5x8, its image 6x8"
    with pytest.raises(DataError, match=message):
        prepare(tmp_path, tmp_path / "a.tfrecord", **IMAGES, image_size=(4, 4))


def test_images_of_other_sizes_need_a_size(tmp_path: Path) -> None:
    records = [scene(index, (6, 8 + index // 5)) for index in range(6)]
    write(tmp_path / "a.tfrecord", [example(**record) for record in records])
    message = r"record 0 is 6x8, of .*record 5 6x9\. Set data\.image_size"
    with pytest.raises(DataError, match=message):
        prepare(tmp_path, tmp_path / "a.tfrecord", **IMAGES)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target_columns": None}, "needs data.target_columns"),
        ({"target_columns": ["y"]}, "data.target_columns names 'y', received the features signal"),
        ({"target_columns": ["signal", "label"]}, "at least one input in addition to the targets"),
        ({"features": {"signal": {"encoding": "image", "shape": [2]}}}, "expected none for an im"),
        ({"path": "https://host/a"}, "expected a folder or pattern of TFRecords on this machine"),
    ],
)
def test_a_wrong_schema_is_refused(options: dict[str, Any], message: str) -> None:
    given = {"path": "x", "features": FEATURES, "target_columns": ["label"], **options}
    with pytest.raises((QatlineError, ValueError), match=message):
        DataSettings.model_validate({"kind": "tfrecord", **given})
