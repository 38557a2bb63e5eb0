import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from qat_lib.errors import DataError
from qatline.components.artifacts import Dataset
from qatline.components.data.images import decode_image, load_image, resize_array
from qatline.components.data.reader import load_split, numpy_batches
from qatline.components.settings import DataSettings
from qatline.components.steps.prepare_data import prepare_data_step
from qatline.components.support.events import NullProgress

Make = Callable[..., Path]
SPLITS = ("train", "calibration", "validation", "test")


def prepare(
    root: Path, *, progress: Any = None, out: str = "out", **data: Any
) -> tuple[Path, dict[str, float]]:
    folder = root.parent / out
    folder.mkdir()
    settings = DataSettings(kind="folder", path=str(root), **data)
    return folder, prepare_data_step(
        folder, data=settings, seed=0, progress=progress or NullProgress()
    )


def test_folder_images_keep_files_and_classes(image_folder: Make) -> None:
    root = image_folder()
    out, _ = prepare(root)
    info = Dataset(out).info()
    assert (info.classes, info.image_shape, info.root) == (("cat", "dog"), (6, 8, 3), str(root))
    assert not list(out.glob("*_x.npy"))
    expected = {
        np.asarray(Image.open(path)).tobytes(): label
        for label, name in enumerate(("cat", "dog"))
        for path in (root / name).iterdir()
    }
    found = {}
    for split in SPLITS:
        found.update(
            {x.tobytes(): y for x, y in zip(*load_split(out, split, raw=True), strict=True)}
        )
    assert found == expected


def test_batches_are_read_one_by_one(image_folder: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    from qatline.components.data import image_split

    out, metrics = prepare(image_folder())
    loaded: list[Path] = []
    original = image_split.load_image
    monkeypatch.setattr(
        image_split, "load_image", lambda path, *rest: loaded.append(path) or original(path, *rest)
    )
    batches = numpy_batches(out, "train", 4)
    x, y = next(batches)
    assert (x.shape, x.dtype, len(loaded)) == ((4, 6, 8, 3), np.float32, 4)
    assert len(y) + sum(len(labels) for _, labels in batches) == metrics["train_samples"]


def test_the_fingerprint_is_of_the_content(image_folder: Make) -> None:
    root = image_folder()
    prints = [Dataset(prepare(root, out=name)[0]).info().fingerprint for name in ("a", "b")]
    os.utime(root / "cat" / "000.png", ns=(1, 1))
    prints.append(Dataset(prepare(root, out="c")[0]).info().fingerprint)
    Image.new("RGB", (8, 6)).save(root / "cat" / "000.png")
    prints.append(Dataset(prepare(root, out="d")[0]).info().fingerprint)
    assert prints[0] == prints[1] == prints[2] != prints[3]


def test_resizing_and_gray(image_folder: Make) -> None:
    out, _ = prepare(image_folder(), image_size=(5, 7), color="gray")
    assert Dataset(out).info().image_shape == (5, 7, 1)
    assert load_split(out, "test")[0].shape[1:] == (5, 7, 1)


def test_what_is_no_image_is_passed_over(image_folder: Make) -> None:
    root = image_folder()
    (root / "cat" / "notes.txt").write_text("hello")
    (root / "cat" / ".hidden.png").write_text("hello")
    (root / ".cache").mkdir()
    _, metrics = prepare(root)
    assert sum(metrics[f"{split}_samples"] for split in SPLITS) == 24


def break_empty(path: Path) -> None:
    path.write_bytes(b"")


def break_text(path: Path) -> None:
    path.write_text("this is no image")


def break_cut(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def break_flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)


@pytest.mark.parametrize(
    "breaks", [break_empty, break_text, break_cut, break_flip], ids=lambda f: f.__name__
)
def test_a_broken_image_is_named(image_folder: Make, breaks: Callable[[Path], None]) -> None:
    root = image_folder()
    breaks(root / "dog" / "004.png")
    with pytest.raises(DataError, match=r"dog/004\.png is broken.*data\.skip_broken=true"):
        prepare(root)


def test_a_broken_image_is_left_out_when_asked(image_folder: Make, progress: Any) -> None:
    root = image_folder()
    break_cut(root / "dog" / "004.png")
    out, metrics = prepare(root, skip_broken=True, progress=progress)
    assert metrics["broken_images"] == 1
    assert sum(metrics[f"{split}_samples"] for split in SPLITS) == 23
    assert [
        ("dog/004.png" in message) for message in progress.warnings if "left out" in message
    ] == [True]
    assert not any("dog/004.png" in (out / f"{split}_files.json").read_text() for split in SPLITS)


def test_skip_broken_refuses_class_without_images(image_folder: Make) -> None:
    root = image_folder(count=3)
    for path in (root / "dog").iterdir():
        break_empty(path)
    with pytest.raises(DataError, match="no readable image is left in class 'dog'"):
        prepare(root, skip_broken=True)


def test_images_of_different_sizes_need_a_size(image_folder: Make) -> None:
    root = image_folder()
    Image.new("RGB", (9, 9)).save(root / "dog" / "big.png")
    with pytest.raises(
        DataError, match=r"differ in size: .*000\.png is 6x8, .*big\.png is 9x9.*data\.image_size"
    ):
        prepare(root)
    assert Dataset(prepare(root, image_size=(6, 6), out="sized")[0]).info().image_shape == (6, 6, 3)


def test_folders_that_cannot_work_are_refused(image_folder: Make, tmp_path: Path) -> None:
    root = image_folder()
    cases: list[tuple[Path, dict[str, Any], str]] = [
        (tmp_path / "nowhere", {}, "nowhere is missing"),
        (root / "cat" / "000.png", {}, "is a file"),
        (root / "cat", {}, "at least two sub-folders, one a class; received none"),
        (
            root,
            {"classes": ["cat", "cow"]},
            "data.classes names 'cow', received the sub-folders cat, dog",
        ),
    ]
    for index, (path, data, message) in enumerate(cases):
        out = tmp_path / f"out{index}"
        out.mkdir()
        settings = DataSettings(kind="folder", path=str(path), **data)
        with pytest.raises(DataError, match=message):
            prepare_data_step(out, data=settings, seed=0, progress=NullProgress())
    (root / "emu").mkdir()
    with pytest.raises(DataError, match=r"emu: expected images .* found none"):
        prepare(root)


def test_parts_are_not_taken_for_classes(image_folder: Make) -> None:
    root = image_folder(("train", "val"))
    with pytest.raises(DataError, match=r"train: expected at least two sub-folders, one a class"):
        prepare(root)
    assert Dataset(prepare(root, classes=["train", "val"], out="named")[0]).info().classes == (
        "train",
        "val",
    )


def test_a_quick_trial_decodes_only_what_it_uses(
    image_folder: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    from qatline.components.data import file_source

    decoded: list[str] = []
    original = file_source.decode_image
    monkeypatch.setattr(
        file_source,
        "decode_image",
        lambda *args, name: decoded.append(name) or original(*args, name=name),
    )
    root = image_folder(count=30)
    out, _ = prepare(root, limit=20)
    assert len(decoded) == sum(Dataset(out).info().splits.values()) == 20
    assert sum("/cat/" in name for name in decoded) == 10


def test_named_classes_set_label_order(image_folder: Make) -> None:
    out, _ = prepare(image_folder(("a", "b", "c")), classes=["c", "a"])
    assert Dataset(out).info().classes == ("c", "a")
    assert sum(Dataset(out).info().splits.values()) == 24


def test_image_changed_after_preparation_is_detected(image_folder: Make) -> None:
    root = image_folder()
    out, _ = prepare(root)
    for path in root.rglob("*.png"):
        Image.new("RGB", (3, 3)).save(path)
    with pytest.raises(DataError, match=r"is \(3, 3, 3\), expected \(6, 8, 3\)"):
        load_split(out, "test")
    for path in root.rglob("*.png"):
        path.unlink()
    with pytest.raises(DataError, match="can't be read"):
        load_split(out, "test")


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def test_images_are_turned_upright() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # Rotate by 90 degrees clockwise to view.
    data = encoded(Image.new("RGB", (4, 2), "red"), "JPEG", exif=exif)
    assert decode_image(data, "rgb", None, name="x").shape == (4, 2, 3)


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBA", "CMYK", "LA"])
def test_every_usual_mode_becomes_rgb_or_gray(mode: str) -> None:
    image = Image.new("RGB", (4, 2), (255, 0, 0)).convert(mode)
    data = encoded(image, "TIFF" if mode == "CMYK" else "PNG")
    assert decode_image(data, "rgb", None, name="x").shape == (2, 4, 3)
    assert decode_image(data, "gray", None, name="x").shape == (2, 4, 1)


def test_sixteen_bits_are_refused_instead_of_clipped() -> None:
    data = encoded(Image.fromarray(np.full((2, 2), 5000, np.uint16)))
    with pytest.raises(DataError, match=r"image deep has mode I.*8 bits"):
        decode_image(data, "gray", None, name="deep")


def test_a_file_that_is_gone_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"gone\.png can't be read: No such file"):
        load_image(tmp_path / "gone.png", "rgb", None)


@pytest.mark.parametrize("kind", [np.uint8, np.float32])
def test_arrays_are_resized_as_files_are(kind: type) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (3, 8, 8, 3), np.uint8)
    resized = resize_array(pixels.astype(kind), (4, 5))
    assert (resized.shape, resized.dtype) == ((3, 4, 5, 3), kind)
    as_file = decode_image(encoded(Image.fromarray(pixels[1])), "rgb", (4, 5), name="x")
    assert np.abs(resized[1].astype(float) - as_file).max() <= (0 if kind is np.uint8 else 1.0)
