"""Every error of an array file has one message."""

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qat_lib.errors import DataError, StorageError
from qatline.components.artifacts import Dataset
from qatline.components.data.reader import load_split
from qatline.components.settings import DataSettings
from qatline.components.steps.prepare_data import prepare_data_step
from qatline.components.support.events import NullProgress

Arrays = dict[str, np.ndarray]
SPLITS = ("train", "calibration", "validation", "test")


def good(samples: int = 60, classes: int = 3) -> Arrays:
    generator = np.random.default_rng(3)
    return {
        "x": generator.integers(0, 256, (samples, 5, 4, 3), np.uint8),
        "y": np.arange(samples) % classes,
    }


def prepare(folder: Path, arrays: Arrays, **data: Any) -> Path:
    np.savez_compressed(folder / "data.npz", **arrays)
    return prepare_file(folder, folder / "data.npz", **data)


def prepare_file(folder: Path, file: Path, **data: Any) -> Path:
    out = folder / "out"
    out.mkdir()
    prepare_data_step(
        out, data=DataSettings(kind="npz", path=str(file), **data), seed=0, progress=NullProgress()
    )
    return out


@pytest.mark.parametrize(
    ("x", "y"),
    [("x", "y"), ("x_train", "y_train"), ("images", "labels"), ("train_images", "train_labels")],
)
def test_the_usual_names_are_understood(tmp_path: Path, x: str, y: str) -> None:
    arrays = good()
    out = prepare(tmp_path, {x: arrays["x"], y: arrays["y"]})
    info = Dataset(out).info()
    assert (info.image_shape, info.classes, sum(info.splits.values())) == (
        (5, 4, 3),
        ("0", "1", "2"),
        60,
    )


def test_images_keep_their_labels(tmp_path: Path) -> None:
    arrays = good()
    label_of = {
        image.tobytes(): label for image, label in zip(arrays["x"], arrays["y"], strict=True)
    }
    out = prepare(tmp_path, arrays)
    for split in SPLITS:
        for image, label in zip(*load_split(out, split, raw=True), strict=True):
            assert label_of[image.tobytes()] == label


def test_parts_of_the_source_stay_apart(tmp_path: Path) -> None:
    arrays = good(120)
    out = prepare(
        tmp_path,
        {
            "x_train": arrays["x"][:60],
            "y_train": arrays["y"][:60],
            "x_val": arrays["x"][60:90],
            "y_val": arrays["y"][60:90],
            "x_test": arrays["x"][90:],
            "y_test": arrays["y"][90:],
        },
    )
    for split, part in (("validation", arrays["x"][60:90]), ("test", arrays["x"][90:])):
        found = load_split(out, split, raw=True)[0]
        assert sorted(image.tobytes() for image in found) == sorted(
            image.tobytes() for image in part
        )
    assert Dataset(out).info().splits == {
        "train": 45,
        "calibration": 15,
        "validation": 30,
        "test": 30,
    }


def test_limit_takes_from_every_part_of_the_source(tmp_path: Path) -> None:
    arrays = good(120)
    parts = {"x_train": arrays["x"][:90], "y_train": arrays["y"][:90]}
    out = prepare(
        tmp_path, {**parts, "x_test": arrays["x"][90:], "y_test": arrays["y"][90:]}, limit=40
    )
    assert Dataset(out).info().splits["test"] == 10
    assert sum(Dataset(out).info().splits.values()) == 40


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_floats_become_float32_with_scale_one(tmp_path: Path, kind: type) -> None:
    arrays = good()
    out = prepare(tmp_path, {**arrays, "x": (arrays["x"] / 256).astype(kind)})
    assert Dataset(out).info().dtype == "float32"
    x, _ = load_split(out, "train")
    assert x.dtype == np.float32
    assert 0 <= x.min() < x.max() < 1


def test_gray_images_without_channels_get_one(tmp_path: Path) -> None:
    arrays = good()
    assert Dataset(prepare(tmp_path, {**arrays, "x": arrays["x"][..., 0]})).info().image_shape == (
        5,
        4,
        1,
    )


@pytest.mark.parametrize(
    "y", [lambda y: y[:, None], lambda y: y.astype(np.float64), lambda y: y.astype(np.uint8)]
)
def test_labels_in_other_forms_are_understood(
    tmp_path: Path, y: Callable[[np.ndarray], np.ndarray]
) -> None:
    arrays = good()
    out = prepare(tmp_path, {**arrays, "y": y(arrays["y"])})
    assert load_split(out, "train")[1].dtype == np.int64


def test_fingerprint_depends_on_content_only(tmp_path: Path) -> None:
    found = []
    for name, change in (("a", 0), ("b", 0), ("c", 1)):
        (tmp_path / name).mkdir()
        arrays = good()
        arrays["x"][7, 0, 0, 0] ^= change
        found.append(Dataset(prepare(tmp_path / name, arrays)).info().fingerprint)
    assert found[0] == found[1] != found[2]


def test_images_shared_between_parts_are_counted(tmp_path: Path, progress: Any) -> None:
    arrays = good(90)
    arrays["x"][:] = arrays["x"][:3][np.arange(90) % 3]
    np.savez(tmp_path / "data.npz", **arrays)
    out = tmp_path / "out"
    out.mkdir()
    settings = DataSettings(kind="npz", path=str(tmp_path / "data.npz"))
    metrics = prepare_data_step(out, data=settings, seed=0, progress=progress)
    assert metrics["duplicates"] == 90 - metrics["train_samples"] == Dataset(out).info().duplicates
    assert any("byte for byte" in message for message in progress.warnings)


def with_nan(x: np.ndarray) -> np.ndarray:
    floats = x.astype(np.float32)
    floats[17, 2, 1, 0] = np.nan
    return floats


def with_infinity(x: np.ndarray) -> np.ndarray:
    floats = x.astype(np.float32)
    floats[3, 0, 0, 0] = -np.inf
    return floats


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: {"x": with_nan(a["x"])}, "train inputs: sample 17 holds NaN"),
        (lambda a: {"x": with_infinity(a["x"])}, "sample 3 holds NaN or infinity"),
        (
            lambda a: {"x": a["x"].ravel()},
            r"expected \(samples, ...\), .*height, width, channels\); received \(3600,\)",
        ),
        (lambda a: {"x": a["x"][:0]}, "at least one sample"),
        (lambda a: {"x": a["x"][:, :0]}, "size of at least 1"),
        (lambda a: {"x": np.zeros((60, 3, 8, 8), np.uint8)}, "looks like .* channels last"),
        (
            lambda a: {"x": a["x"].astype(np.int32)},
            "expected uint8 or a floating type, received int32",
        ),
        (lambda a: {"x": a["x"].astype(np.complex64)}, "received complex64"),
        (lambda a: {"x": a["x"] > 3}, "received bool"),
        (lambda a: {"x": a["x"].astype("U3")}, "received <U3"),
        (lambda a: {"x": a["x"].astype(object)}, r"array x can't be read.*no pickled objects"),
        (lambda a: {"y": a["y"][:-1]}, "60 samples but 59 targets"),
        (lambda a: {"y": np.eye(3)[a["y"]]}, r"One-hot labels: use y.argmax\(axis=1\)"),
        (lambda a: {"y": a["y"] - 1}, "expected 0, 1, 2, ..., received -1 for sample 0"),
        (
            lambda a: {"y": np.where(a["y"] == 1, np.nan, a["y"])},
            r"train targets: expected finite targets, received nan for sample 1",
        ),
        (lambda a: {"y": a["y"].astype("U1")}, "targets: expected integers, received <U1"),
        (lambda a: {"y": a["y"] * 0}, "at least two classes, received only class 0"),
        (lambda a: {"y": a["y"] + 1}, "class 0 of 0 to 3 has no sample"),
        (lambda a: {"y": a["y"] * 2}, "class 1 of 0 to 4 has no sample"),
        (lambda a: {"y": a["y"] * 10**6}, "the largest is 2000000 with 60 samples"),
        (lambda a: {"y": a["y"] * 10**12}, "expected class indices"),
        (
            lambda a: {"y": np.r_[np.zeros(58, int), 1, 1]},
            r"class '1' has 2 samples; at least 3 are needed",
        ),
        (
            lambda a: {"x_test": a["x"], "x_train": a["x"], "y_train": a["y"]},
            "the test part has x_test but no y_test",
        ),
        (
            lambda a: {
                "x_train": a["x"],
                "y_train": a["y"],
                "x_test": a["x"][:, :2],
                "y_test": a["y"],
            },
            r"test inputs are uint8 \(2, 4, 3\), train inputs uint8 \(5, 4, 3\)",
        ),
        (
            lambda a: {
                "x_train": a["x"],
                "y_train": a["y"],
                "x_test": a["x"],
                "y_test": a["y"] + 1,
            },
            r"test targets: expected 0 to 2 \(3 classes\), received 3 for sample 2",
        ),
    ],
)
def test_a_broken_file_is_refused(
    tmp_path: Path, change: Callable[[Arrays], Arrays], message: str
) -> None:
    changed = change(good())
    arrays = changed if "x_train" in changed else {**good(), **changed}
    with pytest.raises(DataError, match=message):
        prepare(tmp_path, arrays)


def test_file_without_known_names_lists_its_names(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"x_train and y_train.*received pictures, targets"):
        prepare(tmp_path, {"pictures": np.zeros(3), "targets": np.zeros(3)})


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere\.npz is missing: correct data\.path"):
        prepare_file(tmp_path, tmp_path / "nowhere.npz")


@pytest.mark.parametrize("keep", [0.0, 0.3, 0.9, 0.999])
def test_a_truncated_file_is_named(tmp_path: Path, keep: float) -> None:
    np.savez_compressed(tmp_path / "data.npz", **good())
    whole = (tmp_path / "data.npz").read_bytes()
    (tmp_path / "short.npz").write_bytes(whole[: int(keep * len(whole))])
    with pytest.raises(
        DataError, match=r"short\.npz can.t be used: expected an \.npz file.*only a part of one"
    ):
        prepare_file(tmp_path, tmp_path / "short.npz")


def test_a_flipped_bit_is_found(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", **good())
    data = bytearray((tmp_path / "data.npz").read_bytes())
    data[1000] ^= 4
    (tmp_path / "data.npz").write_bytes(data)
    with pytest.raises(DataError, match=r"truncated or no \.npz file: Bad CRC-32"):
        prepare_file(tmp_path, tmp_path / "data.npz")


def test_truncated_array_in_intact_archive_is_found(tmp_path: Path) -> None:
    np.savez(tmp_path / "whole.npz", **good())
    with (
        zipfile.ZipFile(tmp_path / "whole.npz") as whole,
        zipfile.ZipFile(tmp_path / "cut.npz", "w") as cut,
    ):
        cut.writestr("x.npy", whole.read("x.npy")[:-100])
        cut.writestr("y.npy", whole.read("y.npy"))
    with pytest.raises(DataError, match="array x can't be read"):
        prepare_file(tmp_path, tmp_path / "cut.npz")


def test_full_disk_is_not_broken_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from qatline.components.data import npz_source

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(npz_source.shutil, "copyfileobj", full)
    with pytest.raises(StorageError, match="the disk is full"):
        prepare(tmp_path, good())
    assert list((tmp_path / "out").iterdir()) == []


def bomb(path: Path, size: int) -> None:
    """Write images that deflate to a thousandth of ``size`` bytes."""
    shape = (size // (64 * 64), 64, 64, 1)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        with archive.open("x.npy", "w", force_zip64=True) as member:
            header = {"descr": "|u1", "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(member, header)
            for _ in range(size >> 20):
                member.write(bytes(1 << 20))
        with archive.open("y.npy", "w") as member:
            np.lib.format.write_array(member, np.arange(shape[0]) % 2)


def test_read_npz_refuses_bombs_before_unpacking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from qatline.components.data import npz_source

    bomb(tmp_path / "bomb.npz", 300 << 20)
    copied: list[object] = []
    monkeypatch.setattr(npz_source.shutil, "copyfileobj", lambda *args: copied.append(args))
    with pytest.raises(
        DataError, match=r"unpack to 315,.*at most 268,435,456.*QATLINE_MAX_UNPACKED=1GiB"
    ):
        prepare_file(tmp_path, tmp_path / "bomb.npz")
    assert not copied


def test_read_npz_takes_what_the_variable_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez(tmp_path / "data.npz", **good())
    monkeypatch.setenv("QATLINE_MAX_UNPACKED", "1K")
    with pytest.raises(
        DataError, match=r"expected at most 1,024\. If you trust the file, allow more"
    ):
        prepare_file(tmp_path, tmp_path / "data.npz")
    (tmp_path / "out").rmdir()
    monkeypatch.setenv("QATLINE_MAX_UNPACKED", "1MiB")
    assert sum(Dataset(prepare_file(tmp_path, tmp_path / "data.npz")).info().splits.values()) == 60


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"descr": "|u1", "fortran_order": False, "shape": (10**12, 8, 8, 1)}, "a whole .npy file"),
        ({"descr": "|u1", "fortran_order": False, "shape": (-4, 8, 8, 1)}, "must be positive"),
        ({"descr": "|O", "fortran_order": False, "shape": (4,)}, "Python objects"),
    ],
)
def test_read_npz_checks_headers(tmp_path: Path, header: dict[str, Any], message: str) -> None:
    with zipfile.ZipFile(tmp_path / "data.npz", "w") as archive:
        with archive.open("x.npy", "w") as member:
            np.lib.format.write_array_header_1_0(member, header)
        archive.writestr("y.npy", b"")
    with pytest.raises(DataError, match=rf"the array x can't be read: .*{message}"):
        prepare_file(tmp_path, tmp_path / "data.npz")
