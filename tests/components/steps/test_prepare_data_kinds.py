"""Sources and tasks beside images with classes: shapes, several inputs, tables, masks, functions."""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from qat_lib.errors import ConfigError, DataError
from qat_lib.preprocessing import PreprocessingByInput
from qatline.components.artifacts import Dataset
from qatline.components.artifacts.data_info import InputInfo
from qatline.components.data.reader import load_split, numpy_batches, open_split
from qatline.components.settings import DataSettings, TaskSettings
from qatline.components.steps.prepare_data import prepare_data_state, prepare_data_step
from qatline.components.support.events import NullProgress
from qatline.components.tasks import open_task

SPLITS = ("train", "calibration", "validation", "test")
COUNT = 60

Arrays = dict[str, Any]


def prepare(folder: Path, *, task: Arrays | None = None, progress: Any = None, **data: Any) -> Path:
    out = folder / "out"
    out.mkdir()
    prepare_data_step(
        out,
        data=DataSettings(**data),
        task=TaskSettings(**(task or {})),
        seed=0,
        progress=progress or NullProgress(),
    )
    return out


def npz(folder: Path, **arrays: Any) -> Arrays:
    np.savez(folder / "data.npz", **arrays)
    return {"kind": "npz", "path": str(folder / "data.npz")}


def floats(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def together(out: Path, **options: Any) -> tuple[Any, np.ndarray]:
    """Return the samples of all parts."""
    parts = [load_split(out, split, **options) for split in SPLITS]
    return np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts])


# ------------------------------------------------------------------ shapes and tasks
@pytest.mark.parametrize("shape", [(7,), (9, 2), (4, 5, 3), (2, 3, 4, 2)])
def test_prepare_data_keeps_inputs_of_any_shape(tmp_path: Path, shape: tuple[int, ...]) -> None:
    x, y = floats(COUNT, *shape), floats(COUNT)
    out = prepare(tmp_path, **npz(tmp_path, x=x, y=y), preprocessing={"scale": 2, "mean": [1.0]})
    info = Dataset(out).info()
    assert info.inputs == {"x": InputInfo(shape=shape, dtype="float32")}
    assert (info.task, info.target_shape, info.classes) == ("regression", (1,), ())
    value_of = {sample.tobytes(): value for sample, value in zip(x, y, strict=True)}
    found, targets = together(out, raw=True)
    assert len(found) == COUNT
    for sample, target in zip(found, targets, strict=True):
        assert value_of[sample.tobytes()] == target[0]
    np.testing.assert_allclose(
        load_split(out, "test")[0], load_split(out, "test", raw=True)[0] * 2 - 1
    )


def multilabel(count: int) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 2, (count, 3))


@pytest.mark.parametrize(
    ("targets", "name", "shape", "kind"),
    [
        (np.arange(COUNT) % 3, "classification", (), np.int64),
        ((np.arange(COUNT) % 3).astype(np.float64), "classification", (), np.int64),
        (np.arange(COUNT) + 25.0, "regression", (1,), np.float32),
        (floats(COUNT, 2), "regression", (2,), np.float32),
        (multilabel(COUNT), "multilabel", (3,), np.float32),
        (np.arange(COUNT * 20).reshape(COUNT, 4, 5) % 3, "segmentation", (4, 5), np.uint8),
        (np.arange(COUNT * 20).reshape(COUNT, 4, 5, 1) % 3, "segmentation", (4, 5), np.uint8),
    ],
)
def test_task_is_derived_from_the_targets(
    tmp_path: Path, targets: np.ndarray, name: str, shape: tuple[int, ...], kind: type
) -> None:
    out = prepare(tmp_path, **npz(tmp_path, x=floats(COUNT, 4, 5, 1), y=targets))
    info = Dataset(out).info()
    assert (info.task, info.target_shape) == (name, shape)
    batches = list(numpy_batches(out, "test", 5))
    assert {y.dtype.type for _, y in batches} == {kind}
    assert {y.shape[1:] for _, y in batches} == {shape}
    assert open_task(info).name == name


def test_task_in_the_config_decides(tmp_path: Path) -> None:
    (tmp_path / "numbers").mkdir()
    labels = np.arange(COUNT) % 3
    given = npz(tmp_path, x=floats(COUNT, 4), y=labels)
    out = prepare(tmp_path / "numbers", **given, task={"name": "regression"})
    assert Dataset(out).info().task == "regression"
    assert load_split(out, "test")[1].dtype == np.float32


def test_regression_needs_no_samples_of_every_class(tmp_path: Path) -> None:
    out = prepare(tmp_path, **npz(tmp_path, x=floats(COUNT, 4), y=floats(COUNT)), limit=30)
    splits = Dataset(out).info().splits
    assert (sum(splits.values()), splits["test"]) == (30, 6)


def test_task_of_the_user_is_recorded_with_its_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    code = "from qatline.components.tasks import Task\nclass Mine(Task):\n    pass\n"
    digests = []
    for index, extra in enumerate(("", "", "# changed\n")):
        (tmp_path / "my_own_task.py").write_text(code + extra)
        (tmp_path / str(index)).mkdir()
        given = npz(tmp_path, x=floats(COUNT, 4), y=floats(COUNT, 2, 2, 2))
        info = Dataset(
            prepare(tmp_path / str(index), **given, task={"name": "my_own_task:Mine"})
        ).info()
        assert (info.task, info.target_shape) == ("my_own_task:Mine", (2, 2, 2))
        digests.append(info.task_code)
    assert digests[0] == digests[1] != digests[2]
    assert all(digests)


@pytest.mark.parametrize(
    ("targets", "options", "message"),
    [
        (floats(COUNT, 2, 2), {}, r"no task fits float32 \(60, 2, 2\)\. Set task\.name"),
        (np.eye(3)[np.arange(COUNT) % 3], {}, "One-hot labels"),
        (np.arange(COUNT) - 2, {}, "received -2 for sample 0"),
        (np.full(COUNT, np.inf), {}, "expected finite targets, received inf for sample 0"),
        (multilabel(COUNT) * 2, {"name": "multilabel"}, "expected 0 or 1 for each class"),
        (
            np.where(np.arange(COUNT * 4) == 30, 9, 0).reshape(COUNT, 2, 2),
            {"classes": ["a", "b"]},
            "expected classes from 0 to 1 or 255 .*received 9 in mask 7",
        ),
        (multilabel(COUNT), {"classes": ["a", "b"]}, "a column for each of 2 classes"),
    ],
)
def test_wrong_targets_are_one_message(
    tmp_path: Path, targets: np.ndarray, options: Arrays, message: str
) -> None:
    classes = options.pop("classes", None)
    with pytest.raises(DataError, match=message):
        prepare(
            tmp_path,
            **npz(tmp_path, x=floats(COUNT, 4), y=targets),
            classes=classes,
            task=options,
        )


# ------------------------------------------------------------------ several inputs
def two_inputs(count: int = COUNT) -> Arrays:
    return {
        "x_train_image": np.arange(count * 12, dtype=np.uint8).reshape(count, 2, 2, 3),
        "x_train_meta": floats(count, 4),
        "y_train": floats(count),
    }


def test_inputs_by_name_reach_the_reader(tmp_path: Path) -> None:
    arrays = two_inputs()
    values = {"inputs": {"meta": {"scale": 3.0}}}
    out = prepare(tmp_path, **npz(tmp_path, **arrays), preprocessing=values)
    info = Dataset(out).info()
    assert info.shapes == {"image": (2, 2, 3), "meta": (4,)}
    with pytest.raises(DataError, match=r"one input, received 2 \(image, meta\)"):
        _ = info.image_shape
    preprocessing = Dataset(out).preprocessing()
    assert isinstance(preprocessing, PreprocessingByInput)
    assert {name: form.scale for name, form in preprocessing.inputs.items()} == {
        "image": 1 / 255,
        "meta": 3.0,
    }
    place = {value.tobytes(): index for index, value in enumerate(arrays["x_train_meta"])}
    raw, targets = load_split(out, "train", raw=True)
    for image, meta, target in zip(raw["image"], raw["meta"], targets, strict=True):
        index = place[meta.tobytes()]
        np.testing.assert_array_equal(image, arrays["x_train_image"][index])
        assert target[0] == arrays["y_train"][index]
    x, _ = next(iter(numpy_batches(out, "train", 7)))
    np.testing.assert_array_equal(x["meta"], raw["meta"][:7] * np.float32(3))


def test_inputs_by_name_reach_tensorflow(tmp_path: Path) -> None:
    from qatline.components.data.reader import tf_dataset

    out = prepare(tmp_path, **npz(tmp_path, **two_inputs()))
    x, y = load_split(out, "train")
    batches = list(tf_dataset(out, "train", 16).as_numpy_iterator())
    for name in ("image", "meta"):
        np.testing.assert_array_equal(np.concatenate([each[name] for each, _ in batches]), x[name])
    np.testing.assert_array_equal(np.concatenate([targets for _, targets in batches]), y)
    with pytest.raises(DataError, match="augment: expected none for data other than images"):
        tf_dataset(out, "train", 16, augment="shift")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x_train_meta": floats(COUNT - 1, 4)}, "train inputs 'meta': 59 samples but 60 targets"),
        ({"y_train": None}, "the train part has x_train_image but no y_train"),
        (
            {"x_test_image": np.zeros((9, 2, 2, 3), np.uint8), "y_test": floats(9)},
            "the test part has the inputs image, the train part image, meta",
        ),
        (
            {"x_train_meta": np.where(np.arange(COUNT)[:, None] == 5, np.nan, floats(COUNT, 4))},
            "train inputs 'meta': sample 5 holds NaN",
        ),
    ],
)
def test_wrong_inputs_are_named(tmp_path: Path, change: Arrays, message: str) -> None:
    arrays = {
        name: array for name, array in {**two_inputs(), **change}.items() if array is not None
    }
    with pytest.raises(DataError, match=message):
        prepare(tmp_path, **npz(tmp_path, **arrays))


def test_names_of_inputs_never_leave_the_folder(tmp_path: Path) -> None:
    arrays = {**two_inputs(), "x_train_/../../evil": floats(COUNT, 4)}
    out = prepare(tmp_path, **npz(tmp_path, **arrays))
    assert set(Dataset(out).info().inputs) == {"image", "meta"}
    assert not list(tmp_path.rglob("evil*"))


def test_preprocessing_of_an_unknown_input_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has the inputs image, meta, received depth"):
        prepare(
            tmp_path,
            **npz(tmp_path, **two_inputs()),
            preprocessing={"inputs": {"depth": {"scale": 1.0}}},
        )


def test_standardize_takes_moments_of_the_training_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from qatline.components.data import array_source

    monkeypatch.setattr(array_source, "CHUNK_BYTES", 8 * 3 * 7)  # several blocks
    x = floats(COUNT, 3) * (1.0, 1000.0, 0.0) + (0.0, 1e6, 5.0)
    values = {"standardize": True, "scale": 0.5}
    given = npz(tmp_path, x=x.astype(np.float32), y=floats(COUNT))
    out = prepare(tmp_path, **given, preprocessing=values)
    found, _ = load_split(out, "train")
    np.testing.assert_allclose(found.mean(axis=0), 0, atol=1e-2)
    np.testing.assert_allclose(found.std(axis=0), (1, 1, 0), atol=1e-2)


def test_standardize_needs_arrays(tmp_path: Path, image_folder: Callable[..., Path]) -> None:
    with pytest.raises(DataError, match="standardize: expected arrays or a table of features"):
        prepare(
            tmp_path,
            kind="folder",
            path=str(image_folder()),
            preprocessing={"standardize": True},
        )


# ------------------------------------------------------------------ tables
def table(folder: Path, text: str, **data: Any) -> Arrays:
    (folder / "data.csv").write_text(text)
    return {"kind": "table", "path": str(folder / "data.csv"), "target_columns": ["y"], **data}


def rows(y: Callable[[int], object], count: int = COUNT) -> str:
    lines = [f"{index / 7:.6f},{index * 2},{y(index)}" for index in range(count)]
    return "\n".join(["a,b,y", *lines]) + "\n"


@pytest.mark.parametrize(
    ("y", "task", "classes"),
    [
        (lambda index: index / 3, "regression", ()),
        (lambda index: index % 3, "classification", ("0", "1", "2")),
        (lambda index: ("cat", "dog")[index % 2], "classification", ("cat", "dog")),
    ],
)
def test_table_of_features(
    tmp_path: Path, y: Callable[[int], object], task: str, classes: tuple[str, ...]
) -> None:
    out = prepare(tmp_path, **table(tmp_path, rows(y)))
    info = Dataset(out).info()
    assert (info.task, info.classes, info.shapes) == (task, classes, (2,))
    x, targets = together(out)
    for (_, b), target in zip(x, targets, strict=True):
        expected = y(round(b / 2))
        assert np.ravel(target)[0] == pytest.approx(
            classes.index(expected) if isinstance(expected, str) else expected
        )


def test_table_with_parts_and_several_targets(tmp_path: Path) -> None:
    lines = [
        f"{index},{index % 2},{index // 2 % 2},{('train', 'val', 'test')[index % 3]}"
        for index in range(90)
    ]
    given = table(
        tmp_path,
        "\n".join(["a,wet,cold,part", *lines]),
        target_columns=["wet", "cold"],
        feature_columns=["a"],
        split_column="part",
    )
    info = Dataset(out := prepare(tmp_path, **given)).info()
    assert (info.task, info.classes) == ("multilabel", ("wet", "cold"))
    assert (info.splits["test"], info.splits["validation"]) == (30, 30)
    assert set(load_split(out, "test")[0].ravel() % 3) == {2}


def test_table_of_images(tmp_path: Path, image_folder: Callable[..., Path]) -> None:
    root = image_folder(count=15)
    paths = [*sorted(root.rglob("*.png"))]
    lines = [f"{path.relative_to(tmp_path)},{index / 4}" for index, path in enumerate(paths)]
    given = table(tmp_path, "\n".join(["file,y", *lines]), image_column="file")
    out = prepare(tmp_path, **given)
    value_of = {np.asarray(Image.open(p)).tobytes(): i / 4 for i, p in enumerate(paths)}
    for image, target in zip(*together(out, raw=True), strict=True):
        assert value_of[image.tobytes()] == target[0]
    paths[3].write_bytes(b"broken")
    (tmp_path / "again").mkdir()
    with pytest.raises(DataError, match=rf"{paths[3].name} is broken"):
        prepare(tmp_path / "again", **given)


@pytest.mark.parametrize("of_images", [False, True])
def test_column_of_weights(
    tmp_path: Path, image_folder: Callable[..., Path], of_images: bool
) -> None:
    paths = sorted(image_folder(count=20).rglob("*.png"))
    lines = [
        f"{path.relative_to(tmp_path) if of_images else index},{index / 4},{index / 8}"
        for index, path in enumerate(paths)
    ]
    text = "\n".join(["a,y,w", *lines])
    chosen = {"image_column": "a"} if of_images else {}
    out = prepare(tmp_path, **table(tmp_path, text, weight_column="w", **chosen))
    part = open_split(out, "train")
    np.testing.assert_allclose(part.weights, part.targets[:, 0] / 2)
    assert part.inputs(np.array([0])).shape[1:] == ((6, 8, 3) if of_images else (1,))
    assert open_split(out, "calibration").weights is None
    assert open_split(out, "test").weights is None


def test_key_of_a_table_covers_its_images(
    tmp_path: Path, image_folder: Callable[..., Path]
) -> None:
    root = image_folder(count=2)
    paths = sorted(root.rglob("*.png"))
    lines = [f"{path.relative_to(tmp_path)},1" for path in paths]
    given = table(tmp_path, "\n".join(["file,y", *lines]), image_column="file")
    sections = {"data": DataSettings(**given)}
    first, again = prepare_data_state(sections), prepare_data_state(sections)
    paths[0].write_bytes(paths[0].read_bytes() + b"x")
    assert first == again != prepare_data_state(sections)


def test_parquet_is_read_like_csv(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    given = table(tmp_path, rows(lambda index: index / 3))
    expected = together(prepare(tmp_path, **given))
    pandas.read_csv(tmp_path / "data.csv").to_parquet(tmp_path / "data.parquet")
    (tmp_path / "other").mkdir()
    given["path"] = str(tmp_path / "data.parquet")
    for found, wanted in zip(together(prepare(tmp_path / "other", **given)), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)
    whole = (tmp_path / "data.parquet").read_bytes()
    (tmp_path / "data.parquet").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"data\.parquet can't be read"):
        prepare_data_step(tmp_path, data=DataSettings(**given), seed=0, progress=NullProgress())


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (rows(lambda _: 1.5).replace("a,b,y", "a,b,z"), {}, "target_columns names 'y', .* a, b, z"),
        (rows(lambda _: 1.5), {"split_column": "part"}, "split_column names 'part'"),
        (rows(lambda _: 1.5), {"feature_columns": ["a", "c"]}, "feature_columns names 'c'"),
        (rows(lambda _: 1.5), {"feature_columns": ["a", "y"]}, "'y' is a feature and also"),
        (
            rows(lambda _: 1.5).replace(",4,", ",four,"),
            {},
            r"data\.csv, line 4: expected a number in the column 'b', received 'four'",
        ),
        (rows(lambda _: 1.5).replace(",4,", ",,"), {}, "line 4: .* 'b', received nothing"),
        (rows(lambda _: 1.5).replace(",4,", ",nan,"), {}, "line 4: .* 'b', received 'nan'"),
        (rows(lambda index: "" if index == 9 else 1.5), {}, "line 11: .* 'y', received nothing"),
        (rows(lambda _: 1.5) + "1,2\n", {}, "line 62: expected 3 fields, .* received 2"),
        (rows(lambda _: 1.5) + '"1,2\n', {}, "after line 62: unexpected end of data"),
        ("a,b,y\n", {}, "expected rows, found none"),
        ("", {}, "target_columns names 'y', received the columns"),
        ('"a', {}, "the header can't be read: unexpected end of data"),
        ("a,a,y\n1,2,3\n", {}, "received 'a' twice"),
        (
            rows(lambda index: "cow" if index == 4 else "cat"),
            {"classes": ["cat", "dog"]},
            "line 6: expected a class out of cat, dog in the column 'y', received 'cow'",
        ),
        (
            "a,part,y\n" + "1,train,0.5\n2,dev,0.5\n",
            {"split_column": "part"},
            "line 3: expected train, val or test in the column 'part', received 'dev'",
        ),
        ("a,part,y\n1,test,0.5\n", {"split_column": "part"}, "expected rows with part=train"),
        (rows(lambda _: 1.5), {"weight_column": "w"}, "weight_column names 'w', .* a, b, y"),
        (
            rows(lambda _: 1.5).replace(",4,", ",-4,"),
            {"weight_column": "b"},
            "line 4: expected a number from 0 in the column 'b', received '-4'",
        ),
        (
            rows(lambda _: 1.5).replace(",4,", ",nan,"),
            {"weight_column": "b"},
            "'b', received 'nan'",
        ),
        (
            rows(lambda _: 0).replace(",0\n", ",1.5,0\n").replace(",y\n", ",y,w\n"),
            {"weight_column": "w"},
            "expected a weight above 0, received 0 for all 32 samples",
        ),
    ],
)
def test_a_wrong_table_is_one_message(
    tmp_path: Path, text: str, options: Arrays, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        prepare(tmp_path, **table(tmp_path, text, **options))


def test_a_missing_table_is_named(tmp_path: Path) -> None:
    given = table(tmp_path, "")
    (tmp_path / "data.csv").unlink()
    with pytest.raises(DataError, match=r"the table .*data\.csv can't be read: No such file"):
        prepare(tmp_path, **given)


# ------------------------------------------------------------------ masks and folders
def masks(folder: Path, count: int = 20, size: tuple[int, int] = (6, 8), part: str = "") -> Path:
    root = folder / "scenes"
    generator = np.random.default_rng(len(part))
    for name in ("images", "masks"):
        (root / part / name).mkdir(parents=True)
    for index in range(count):
        pixels = generator.integers(0, 256, (*size, 3), np.uint8)
        Image.fromarray(pixels).save(root / part / "images" / f"{index:03d}.png")
        # The mask is known from the image.
        mask = Image.fromarray(pixels[..., 0] % 3)
        mask.save(root / part / "masks" / f"{index:03d}.png")
    (root / "classes.txt").write_text("road\nsky\ntree\n")
    return root


@pytest.mark.parametrize("storage", ["files", "shards"])
def test_masks_stay_with_their_images(tmp_path: Path, storage: str) -> None:
    out = prepare(tmp_path, kind="masks", path=str(masks(tmp_path)), storage=storage)
    info = Dataset(out).info()
    assert (info.task, info.classes) == ("segmentation", ("road", "sky", "tree"))
    assert (info.shapes, info.target_shape) == ((6, 8, 3), (6, 8))
    images, found = together(out, raw=True)
    assert len(images) == 20
    np.testing.assert_array_equal(found, images[..., 0] % 3)


def test_masks_are_read_from_an_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QATLINE_CACHE", str(tmp_path / "cache"))
    archive = shutil.make_archive(str(tmp_path / "packed"), "tar", masks(tmp_path))
    info = Dataset(prepare(tmp_path, kind="masks", path=archive)).info()
    assert (info.classes, info.root, sum(info.splits.values())) == (
        ("road", "sky", "tree"),
        None,
        20,
    )


def test_masks_are_resized_to_the_nearest_class(tmp_path: Path) -> None:
    out = prepare(tmp_path, kind="masks", path=str(masks(tmp_path)), image_size=(12, 16))
    _, found = together(out)
    assert found.shape == (20, 12, 16)
    assert set(np.unique(found)) == {0, 1, 2}


def test_large_targets_are_memory_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from qatline.components.data import stored_arrays

    out = prepare(tmp_path, kind="masks", path=str(masks(tmp_path)))
    monkeypatch.setattr(stored_arrays, "CHUNK_BYTES", 10)
    assert isinstance(open_split(out, "train").targets, np.memmap)
    images, found = together(out, raw=True)
    np.testing.assert_array_equal(found, images[..., 0] % 3)


def other_size(root: Path) -> None:
    Image.new("L", (8, 7)).save(root / "masks" / "004.png")


def out_of_range(root: Path) -> None:
    Image.new("L", (8, 6), 3).save(root / "masks" / "004.png")


def in_color(root: Path) -> None:
    Image.new("RGB", (8, 6)).save(root / "masks" / "004.png")


def truncated(root: Path) -> None:
    path = root / "masks" / "004.png"
    path.write_bytes(path.read_bytes()[:50])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (other_size, r"the mask .*004\.png is 7x8, its image 6x8"),
        (out_of_range, r"images/004\.png: expected classes from 0 to 2 or 255 .*received 3"),
        (in_color, r"the mask .*004\.png has mode RGB; expected one channel"),
        (truncated, r"the mask .*masks/004\.png is broken.* remove it and its image"),
        (lambda root: (root / "masks" / "004.png").unlink(), r"004\.png has no mask in"),
        (
            lambda root: (root / "masks").rename(root / "labels"),
            r"the folder .*masks is missing: expected images in images/",
        ),
        (lambda root: (root / "classes.txt").write_text("a\na\n"), "two different names"),
    ],
)
def test_a_wrong_mask_is_named(
    tmp_path: Path, change: Callable[[Path], object], message: str
) -> None:
    root = masks(tmp_path)
    change(root)
    with pytest.raises(DataError, match=message):
        prepare(tmp_path, kind="masks", path=str(root))


def test_folder_that_is_split_keeps_its_parts(
    tmp_path: Path, image_folder: Callable[..., Path]
) -> None:
    classes = [f"{part}/{name}" for part in ("train", "val", "test") for name in ("cat", "dog")]
    root = image_folder(tuple(classes))
    out = prepare(tmp_path, kind="folder", path=str(root))
    info = Dataset(out).info()
    assert (info.classes, info.splits) == (
        ("cat", "dog"),
        {"train": 18, "calibration": 6, "validation": 24, "test": 24},
    )
    expected = {np.asarray(Image.open(p)).tobytes() for p in (root / "test").rglob("*.png")}
    assert {image.tobytes() for image in load_split(out, "test", raw=True)[0]} == expected


@pytest.mark.parametrize(
    ("folders", "message"),
    [
        (("train/a", "train/b", "test/a", "test/c"), "expected the classes of the train part"),
        (("val/a", "test/a"), "expected a sub-folder train next to test, val"),
        (("train/a", "training/a"), "train and training are the same part"),
    ],
)
def test_contradicting_parts_are_refused(
    tmp_path: Path, image_folder: Callable[..., Path], folders: tuple[str, ...], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        prepare(tmp_path, kind="folder", path=str(image_folder(folders)))


# ------------------------------------------------------------------ functions
@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Write a module with a function ``data`` and return its reference."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(body: str) -> str:
        monkeypatch.delitem(sys.modules, "my_data", raising=False)
        lines = "\n".join(f"    {line}" for line in body.splitlines())
        (tmp_path / "my_data.py").write_text(
            "import numpy as np\nX = np.arange(240, dtype=np.float32).reshape(60, 4)\n"
            f"Y = X[:, 0] / 8\ndef data(**options):\n{lines}\n"
        )
        return "my_data:data"

    return make


BATCHES = {
    "a tuple": "return X, Y",
    "parts": "return {'train': (X, Y)}",
    "a generator": "return ((X[i:i + 7], Y[i:i + 7]) for i in range(0, 60, 7))",
    "a list": "return [(X[i:i + 7], Y[i:i + 7]) for i in range(0, 60, 7)]",
    "tf.data": "import tensorflow as tf\nreturn tf.data.Dataset.from_tensor_slices((X, Y)).batch(7)",
    "PyDataset": (
        "import keras\nclass Mine(keras.utils.PyDataset):\n    def __len__(self):\n        return 6\n"
        "    def __getitem__(self, i):\n        return X[i * 10:i * 10 + 10], Y[i * 10:i * 10 + 10]\n"
        "return Mine()"
    ),
    "DataLoader": (
        "import torch\ndata = torch.utils.data.TensorDataset(torch.tensor(X), torch.tensor(Y))\n"
        "return torch.utils.data.DataLoader(data, batch_size=7)"
    ),
}


@pytest.mark.parametrize("body", BATCHES.values(), ids=BATCHES)
def test_function_returns_what_fit_takes(
    tmp_path: Path, module: Callable[[str], str], body: str
) -> None:
    if "torch" in body:
        pytest.importorskip("torch")
    out = prepare(tmp_path, kind="python", name=module(body), fingerprint="1")
    x, y = together(out)
    assert sorted(x[:, 0]) == [4.0 * index for index in range(60)]
    np.testing.assert_array_equal(y[:, 0], x[:, 0] / 8)


@pytest.mark.parametrize("body", BATCHES.values(), ids=BATCHES)
def test_function_returns_weights(tmp_path: Path, module: Callable[[str], str], body: str) -> None:
    if "torch" in body:
        pytest.importorskip("torch")
    body = body.replace("X, Y", "X, Y, Y / 2")
    body = body.replace("Y[i:i + 7])", "Y[i:i + 7], Y[i:i + 7] / 2)")
    body = body.replace("Y[i * 10:i * 10 + 10]", "Y[i * 10:i * 10 + 10], Y[i * 10:i * 10 + 10] / 2")
    body = body.replace("torch.tensor(Y)", "torch.tensor(Y), torch.tensor(Y) / 2")
    out = prepare(tmp_path, kind="python", name=module(body), fingerprint="1")
    part = open_split(out, "train")
    np.testing.assert_array_equal(part.weights, part.targets[:, 0] / 2)
    assert len(together(out)[0]) == 60
    assert open_split(out, "test").weights is None


def test_function_receives_its_options(tmp_path: Path, module: Callable[[str], str]) -> None:
    body = (
        "n = options['count']\n"
        "part = lambda: (({'a': X[i:i + 1], 'b': X[i:i + 1]}, [i % 2]) for i in range(n))\n"
        "return {'train': part(), 'val': part(), 'test': part(), 'classes': ['even', 'odd']}"
    )
    out = prepare(tmp_path, kind="python", name=module(body), options={"count": 40})
    info = Dataset(out).info()
    assert (info.classes, info.shapes) == (("even", "odd"), {"a": (4,), "b": (4,)})
    assert info.splits == {"train": 30, "calibration": 10, "validation": 40, "test": 40}


def test_function_without_fingerprint_is_never_reused(
    tmp_path: Path, module: Callable[[str], str], progress: Any
) -> None:
    name = module("return X, Y")
    unnamed = {"data": DataSettings(kind="python", name=name)}
    assert prepare_data_state(unnamed) != prepare_data_state(unnamed)
    named = {"data": DataSettings(kind="python", name=name, fingerprint="2026-11")}
    assert prepare_data_state(named) == {}
    prepare(tmp_path, kind="python", name=name, progress=progress)
    assert any("prepared again in every run" in text for text in progress.warnings)


@pytest.mark.parametrize(
    ("body", "error", "message"),
    [
        ("raise OSError('no disk')", ConfigError, "'my_data:data' failed: OSError: no disk"),
        ("return None", DataError, r"the train part as \(x, y\) or as batches .* a NoneType"),
        ("return []", DataError, "train part: expected batches, received none"),
        ("return {'dev': (X, Y)}", DataError, "expected the parts train, val and test, .*dev"),
        ("return {'test': (X, Y)}", DataError, "expected the part train, received test"),
        ("return X, Y[:-1]", DataError, "60 samples but 59 targets"),
        ("X[9, 2] = np.nan\nreturn X, Y", DataError, "train inputs: sample 9 holds NaN"),
        ("Y[9] = np.nan\nreturn X, Y", DataError, "expected finite targets, received nan"),
        ("return iter([(X, Y), (X[:, :3], Y)])", DataError, r"batch 1: x x is float32 \(3,\)"),
        ("return iter([(X, Y), X])", DataError, r"batch 1: expected \(x, y\) or .* a ndarray"),
        ("return iter([(X, Y), (X, Y, Y)])", DataError, "batch 1: expected x x, y as in the first"),
        ("return X, Y, Y[:-1]", DataError, "train weights: 59 weights but 60 targets"),
        ("return X, Y, X", DataError, r"train weights: expected one number per sample, \(60,\)"),
        ("return X, Y, -Y", DataError, "train weights: .* received -0.5 for sample 1"),
        ("return X, Y, np.where(Y > 2, np.inf, 1)", DataError, "received inf for sample 5"),
        ("return X, Y, Y * 0", DataError, "expected a weight above 0, received 0 for all 32"),
        ("return iter([(X, Y[:3])])", DataError, "batch 0: expected as many inputs as targets"),
        (
            "def parts():\n    yield X, Y\n    raise ValueError('row 61')\nreturn parts()",
            DataError,
            "the train part failed after 1 batches: ValueError: row 61",
        ),
        (
            "import tensorflow as tf\nreturn tf.data.Dataset.from_tensors((X, Y)).repeat()",
            DataError,
            r"repeats without end: remove repeat\(\)",
        ),
    ],
)
def test_a_wrong_function_is_one_message(
    tmp_path: Path, module: Callable[[str], str], body: str, error: type, message: str
) -> None:
    with pytest.raises(error, match=message):
        prepare(tmp_path, kind="python", name=module(body))
