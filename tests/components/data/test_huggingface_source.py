"""Data sets of Hugging Face: saved folders, columns, and damaged data."""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from qat_lib.errors import DataError, MissingPackageError, QatlineError
from qatline.components.artifacts import Dataset
from qatline.components.data.reader import load_split
from qatline.components.settings import DataSettings, TaskSettings
from qatline.components.steps.prepare_data import prepare_data_step
from qatline.components.support.events import NullProgress

datasets = pytest.importorskip("datasets")

COUNT = 60
SPLITS = ("train", "calibration", "validation", "test")

Columns = dict[str, Any]


@pytest.fixture(autouse=True)
def no_bars() -> None:
    datasets.disable_progress_bars()


def signals(count: int = COUNT) -> Columns:
    return {
        "signal": [np.arange(8.0, dtype=np.float32).reshape(4, 2) + i for i in range(count)],
        "label": [index % 3 for index in range(count)],
    }


def features(**changes: Any) -> Any:
    known = {
        "signal": datasets.Array2D((4, 2), "float32"),
        "label": datasets.ClassLabel(names=["a", "b", "c"]),
    }
    return datasets.Features({**known, **changes})


def data_set(columns: Columns | None = None, kinds: Any = None) -> Any:
    return datasets.Dataset.from_dict(columns or signals(), features=kinds or features())


def saved(folder: Path, data: Any) -> Path:
    data.save_to_disk(str(folder / "data"))
    return folder / "data"


def prepare(folder: Path, progress: Any = None, **data: Any) -> Path:
    out = folder / "out"
    out.mkdir()
    prepare_data_step(
        out,
        data=DataSettings.model_validate({"kind": "huggingface", **data}),
        task=TaskSettings(),
        seed=0,
        progress=progress or NullProgress(),
    )
    return out


def together(out: Path) -> tuple[Any, np.ndarray]:
    parts = [load_split(out, split, raw=True) for split in SPLITS]
    return np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts])


@pytest.mark.parametrize("archive", [False, True])
def test_read_huggingface_fetches_from_s3(
    tmp_path: Path, s3: Any, monkeypatch: pytest.MonkeyPatch, archive: bool
) -> None:
    monkeypatch.setenv("QATLINE_CACHE", str(tmp_path / "cache"))
    parts = datasets.DatasetDict({"train": data_set(), "test": data_set(signals(12))})
    root = saved(tmp_path, parts)
    if archive:
        s3.upload_file(shutil.make_archive(str(root), "tar", root), "data", "saved.tar")
    else:
        for path in filter(Path.is_file, root.rglob("*")):
            s3.upload_file(str(path), "data", f"saved/{path.relative_to(root)}")
    shutil.rmtree(root)
    location = "s3://data/saved.tar" if archive else "s3://data/saved"
    out = prepare(tmp_path, path=location)
    shutil.rmtree(tmp_path / "cache")
    info = Dataset(out).info()
    assert (info.source, info.splits["test"]) == (location, 12)
    x, y = together(out)
    np.testing.assert_array_equal(y, x[:, 0, 0].astype(int) % 3)


def test_read_huggingface_keeps_class_names(tmp_path: Path) -> None:
    out = prepare(tmp_path, path=str(saved(tmp_path, data_set())))
    info = Dataset(out).info()
    assert (info.task, info.shapes, info.classes) == ("classification", (4, 2), ("a", "b", "c"))
    x, y = together(out)
    assert sorted(x[:, 0, 0]) == list(range(COUNT))
    np.testing.assert_array_equal(y, x[:, 0, 0] % 3)


def test_read_huggingface_keeps_its_splits(tmp_path: Path, progress: Any) -> None:
    data = datasets.DatasetDict({"train": data_set(), "validation": data_set(), "all": data_set()})
    out = prepare(tmp_path, progress, path=str(saved(tmp_path, data)))
    assert Dataset(out).info().splits["validation"] == COUNT
    assert any("left out: the split 'all'" in text for text in progress.warnings)


def test_read_huggingface_unpacks_an_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QATLINE_CACHE", str(tmp_path / "cache"))
    archive = shutil.make_archive(str(tmp_path / "packed"), "tar", saved(tmp_path, data_set()))
    info = Dataset(prepare(tmp_path, path=archive)).info()
    assert (info.source, sum(info.splits.values())) == (archive, COUNT)


def scenes(count: int = 20, size: tuple[int, int] = (6, 8)) -> Columns:
    generator = np.random.default_rng(0)
    pixels = [generator.integers(0, 256, (*size, 3), np.uint8) for _ in range(count)]
    return {
        "image": [Image.fromarray(each) for each in pixels],
        "mask": [Image.fromarray(each[..., 0] % 3) for each in pixels],
    }


def test_read_huggingface_decodes_images_and_masks(tmp_path: Path) -> None:
    kinds = datasets.Features({"image": datasets.Image(), "mask": datasets.Image()})
    path = saved(tmp_path, data_set(scenes(), kinds))
    out = prepare(tmp_path, path=str(path), target_columns=["mask"])
    info = Dataset(out).info()
    assert (info.task, info.shapes, info.target_shape) == ("segmentation", (6, 8, 3), (6, 8))
    images, masks = together(out)
    np.testing.assert_array_equal(masks, images[..., 0] % 3)


def test_read_huggingface_joins_numbers(tmp_path: Path) -> None:
    columns = {
        "age": [float(index) for index in range(COUNT)],
        "size": list(range(COUNT)),
        "vector": [[1.0, 2.0 + index] for index in range(COUNT)],
        "note": ["unused"] * COUNT,
        "price": [index / 2 for index in range(COUNT)],
    }
    path = saved(tmp_path, datasets.Dataset.from_dict(columns))
    out = prepare(
        tmp_path,
        path=str(path),
        target_columns=["price"],
        feature_columns=["age", "size", "vector"],
    )
    info = Dataset(out).info()
    assert (info.task, info.shapes) == ("regression", {"vector": (2,), "features": (2,)})
    x, y = load_split(out, "train", raw=True)
    np.testing.assert_array_equal(x["features"][:, 0], x["vector"][:, 1] - 2)
    np.testing.assert_array_equal(y[:, 0], x["features"][:, 1] / 2)


# ------------------------------------------------------------------ damaged data
def cut(path: Path) -> None:
    file = next(path.rglob("*.arrow"))
    file.write_bytes(file.read_bytes()[:-1500])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (cut, r"data-00000-of-00001\.arrow: expected a folder written by save_to_disk, complete"),
        (shutil.rmtree, "data: expected a folder written by save_to_disk"),
        (lambda path: (path / "state.json").unlink(), "data: expected a folder written by"),
    ],
)
def test_a_damaged_folder_is_named(
    tmp_path: Path, damage: Callable[[Path], object], message: str
) -> None:
    path = saved(tmp_path, data_set())
    damage(path)
    with pytest.raises(DataError, match=message):
        prepare(tmp_path, path=str(path))


def changed(index: int, name: str, value: Any, **kinds: Any) -> Any:
    columns = signals()
    columns[name][index] = value
    return data_set(columns, features(**kinds))


@pytest.mark.parametrize(
    ("index", "name", "value", "message"),
    [
        (45, "label", -1, r"train split, record 45"),
        (45, "label", None, r"train split, record 45: expected int64 as 'label'"),
        (45, "signal", np.full((4, 2), np.nan, np.float32), "train split, record 45 holds NaN"),
    ],
)
def test_a_wrong_record_is_named(
    tmp_path: Path, index: int, name: str, value: Any, message: str
) -> None:
    path = saved(tmp_path, changed(index, name, value))
    with pytest.raises(DataError, match=message):
        prepare(tmp_path, path=str(path))


def test_a_list_of_another_length_is_named(tmp_path: Path) -> None:
    lists = [[1.0, 2.0]] * COUNT
    lists[7] = [1.0]
    columns = {"x": lists, "y": [index / 2 for index in range(COUNT)]}
    path = saved(tmp_path, datasets.Dataset.from_dict(columns))
    message = r"record 7: expected numbers of the shape \(2,\) as 'x', received \(1,\)"
    with pytest.raises(DataError, match=message):
        prepare(tmp_path, path=str(path), target_columns=["y"])


def test_a_broken_image_is_named(tmp_path: Path) -> None:
    kinds = datasets.Features(
        {"image": datasets.Image(decode=False), "y": datasets.Value("float32")}
    )
    images = [{"bytes": b"no image", "path": None}] * COUNT
    columns = {"image": images, "y": [0.5] * COUNT}
    path = saved(tmp_path, datasets.Dataset.from_dict(columns, features=kinds))
    with pytest.raises(DataError, match=r"record 0, 'image' is broken"):
        prepare(tmp_path, path=str(path), target_columns=["y"])


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        (lambda: data_set(kinds=features(label=datasets.Value("int64"))), {}, "one column of cla"),
        (data_set, {"target_columns": ["y"]}, "target_columns names 'y', received the columns"),
        (data_set, {"feature_columns": ["label"]}, "'label' is an input and a target"),
        (lambda: data_set().add_column("t", ["a"] * COUNT), {}, "in the column 't', received text"),
        (lambda: datasets.DatasetDict({"test": data_set()}), {}, "expected a split train"),
        (
            lambda: datasets.DatasetDict({"train": data_set(), "test": data_set().select([])}),
            {},
            "data/test: expected records, found none",
        ),
        (
            lambda: datasets.DatasetDict(
                {"train": data_set(), "test": data_set().remove_columns("signal")}
            ),
            {},
            "test split: expected the column 'signal', received label",
        ),
    ],
)
def test_wrong_columns_are_one_message(
    tmp_path: Path, data: Callable[[], Any], options: dict[str, Any], message: str
) -> None:
    path = saved(tmp_path, data())
    with pytest.raises(DataError, match=message):
        prepare(tmp_path, path=str(path), **options)


# ------------------------------------------------------------------ the hub
def test_an_unreachable_hub_is_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    with pytest.raises(DataError, match=r"a/b at 1\.0 can't be read from the hub: .*data\.path"):
        prepare(tmp_path, name="a/b", revision="1.0")


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingPackageError, match=r"pip install 'qatline\[hf\]'"):
        prepare(tmp_path, name="a/b", revision="1.0")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs either data.path"),
        ({"path": "x", "name": "a/b", "revision": "1"}, "needs either data.path"),
        ({"name": "a/b"}, "needs data.revision"),
        (
            {"name": "a/b", "revision": "1", "options": {"trust_remote_code": True}},
            "expected name, data_dir or data_files .* received 'trust_remote_code'",
        ),
    ],
)
def test_wrong_settings_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises((QatlineError, ValueError), match=message):
        DataSettings.model_validate({"kind": "huggingface", **options})
